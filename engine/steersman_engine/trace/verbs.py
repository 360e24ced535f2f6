"""The verb that makes acceptance traces. Imports stay light: `steersman --help` loads this file."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def trace_acceptance(
    source: Annotated[
        Path, typer.Option("--in", help="JSONL (or .gz): prompt_token_ids, output_token_ids a line.")
    ],
    out: Annotated[Path, typer.Option(help="The trace: .jsonl, .jsonl.gz or .parquet.")],
    method: Annotated[str, typer.Option(help="ngram or draft-model.")] = "ngram",
    columns: Annotated[
        list[str] | None, typer.Option(help="Names of the file's fields, as ours=theirs,...")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For prompt and output as text: a folder of a model, or bundled."),
    ] = None,
    target: Annotated[str, typer.Option(help="The model that wrote the outputs, for the record.")] = "",
    k_max: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Longest draft looked at. [default: 64, 8 for draft-model]"),
    ] = None,
    min_ngram: Annotated[
        int | None, typer.Option(min=1, help="ngram: shortest match, in tokens. [default: 2]")
    ] = None,
    max_ngram: Annotated[
        int | None, typer.Option(min=1, help="ngram: longest match, in tokens. [default: 4]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="draft-model: folder, hub id, or bundled. [default: bundled, SmolLM2-135M]"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="draft-model: cpu, cuda, cuda:1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Say how far a drafter would have got at every position of outputs that are already written.

    From the trace any K replays exactly. ngram needs neither a model nor a GPU.
    """
    from steersman_engine.trace.command import METHODS, Settings, lines_of, run
    from steersman_engine.trace.pairs import columns_of
    from steersman_policies.policy import did_you_mean

    if method not in METHODS:
        hint = did_you_mean(method, METHODS)
        raise ValueError(f"--method: no {method!r}{hint}; allowed are {', '.join(METHODS)}")
    others = (
        {"--model": model, "--device": device}
        if method == "ngram"
        else {"--min-ngram": min_ngram, "--max-ngram": max_ngram}
    )
    for name, value in others.items():
        if value is not None:
            other = next(each for each in METHODS if each != method)
            raise ValueError(f"{name}: goes with --method {other}, not with {method}")
    settings = Settings(
        method="ngram" if method == "ngram" else "draft-model",
        source=source,
        out=out,
        columns=columns_of(columns or []),
        tokenizer=tokenizer,
        target=target,
        k_max=k_max,
        min_ngram=2 if min_ngram is None else min_ngram,
        max_ngram=4 if max_ngram is None else max_ngram,
        model=None if model == "bundled" else model,
        device=device,
    )
    with _bar(source) as report:
        found = run(settings, report)
    print(json.dumps(found) if as_json else "\n".join(lines_of(found)))


@contextmanager
def _bar(source: Path) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, over the bytes of the file; silence anywhere else."""
    if not sys.stderr.isatty() or not source.is_file():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("acceptance", total=source.stat().st_size)
        yield lambda read: bar.update(task, completed=read)
