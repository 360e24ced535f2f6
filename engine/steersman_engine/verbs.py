"""Verbs of the engine. Imports stay light: `steersman --help` loads this file."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Model = Annotated[
    str | None,
    typer.Option(help="Local folder or hub id of a causal LM. [default: the bundled SmolLM2-135M]"),
]


def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8000,
    sidecar: Annotated[str | None, typer.Option(help="Endpoint of the sidecar. [default: its own]")] = None,
    no_sidecar: Annotated[bool, typer.Option("--no-sidecar", help="Keep the launch K for ever.")] = False,
    engine_id: Annotated[str, typer.Option(help="Name of this engine towards the sidecar.")] = "engine-0",
    max_batch: Annotated[int, typer.Option(min=1, help="Requests decoded together.")] = 16,
    max_len: Annotated[int, typer.Option(min=8, help="Prompt and output tokens of a request.")] = 2048,
    k_max: Annotated[int, typer.Option(min=0, max=64, help="Longest proposal.")] = 8,
    launch_k: Annotated[int, typer.Option(min=0, max=64, help="K while nobody steers.")] = 0,
    prefill_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens per step.")] = 256,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: torch's choice]")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where pause file and fallback table live.")] = None,
    drafter: Annotated[str, typer.Option(help="prompt_lookup or none.")] = "prompt_lookup",
    min_ngram: Annotated[
        int, typer.Option(min=1, max=4, help="Shortest match that prompt_lookup drafts from, in tokens.")
    ] = 2,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1. [default: cuda if there is one]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP interface, steered by a sidecar if there is one."""
    from steersman_engine.server.serve import Settings, run

    if sidecar is not None and no_sidecar:
        raise ValueError("sidecar: --sidecar and --no-sidecar exclude each other")
    settings = Settings(
        model=model,
        host=host,
        port=port,
        sidecar=sidecar,
        with_sidecar=not no_sidecar,
        engine_id=engine_id,
        max_batch=max_batch,
        max_len=max_len,
        k_max=k_max,
        launch_k=launch_k,
        prefill_tokens=prefill_tokens,
        threads=threads,
        state_dir=state_dir,
        drafter=drafter,
        min_ngram=min_ngram,
        device=device,
    )

    def ready(facts: dict[str, object]) -> None:
        line = f"ready: {facts['model']} on {facts['url']} (K 0 to {facts['k_max']})"
        print(json.dumps(facts) if as_json else line, flush=True)

    run(settings, ready)


def bench_lossless(
    model: Model = None,
    prompts: Annotated[int, typer.Option(min=1, max=20, help="How many of the 20 prompts.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=8, help="Output tokens per prompt.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random K and of the sampled runs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check that drafting changes neither greedy output nor the distribution of sampled output."""
    from steersman_engine.bench.lossless import run

    result = run(
        model=model,
        prompts=prompts,
        max_tokens=max_tokens,
        seed=seed,
        progress=_progress,
    )
    _judge(result, as_json)


def bench_link(
    steps: Annotated[int, typer.Option(min=100, help="Steps per state of the sidecar.")] = 1_000,
    groups: Annotated[int, typer.Option(min=6, help="ABBA groups of steered and unsteered blocks.")] = 40,
    trials: Annotated[int, typer.Option(min=1, help="Kills on a virtual clock.")] = 1_000,
    real_trials: Annotated[int, typer.Option(min=1, help="Kills of real processes.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the batches and of the kill points.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what steering adds to a step, and check that no decision outlives its lease (3 minutes)."""
    from steersman_engine.bench.link import run

    with _told_in_one_line():
        result = run(
            steps=steps,
            groups=groups,
            trials=trials,
            real_trials=real_trials,
            seed=seed,
            progress=_progress,
        )
    _judge(result, as_json)


def bench_decision(
    calls: Annotated[int, typer.Option(min=1_000, max=10_000_000, help="Decisions to time.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of plans and loads.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what one decision costs while the plan is replaced every 100 calls."""
    from steersman_engine.bench.decision import run

    result = run(calls=calls, seed=seed, progress=_progress)
    _judge(result, as_json)


def bench_engine(
    model: Model = None,
    groups: Annotated[int, typer.Option(min=6, help="ABBA groups of blocks.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure K = 0 against an engine without a drafter, and step times by batch and tokens (1 minute)."""
    from steersman_engine.bench.plain import run

    result = run(model=model, groups=groups, progress=_progress)
    _judge(result, as_json)


def bench_vllm(
    vllm_python: Annotated[
        Path | None,
        typer.Option(help="Python of vLLM's environment. [default: .venv-vllm/bin/python]"),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model. [default: the bundled SmolLM2-135M]")
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Groups of paired blocks in a real vLLM.")] = 8,
    kills: Annotated[int, typer.Option(min=1, help="Kills of real sidecars.")] = 20,
    steps: Annotated[int, typer.Option(min=10, help="Steps per state, without a model.")] = 500,
    virtual_kills: Annotated[int, typer.Option(min=1, help="Kills on a virtual clock.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of batches and kill points.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what the adapter costs vLLM, and that no sidecar's death harms it (9 minutes)."""
    from steersman_engine.bench.vllm.run import run

    with _told_in_one_line():
        result = run(
            vllm_python=vllm_python,
            model=model,
            groups=groups,
            kills=kills,
            steps=steps,
            virtual_kills=virtual_kills,
            seed=seed,
            progress=_progress,
        )
    _judge(result, as_json)


def vllm_args(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Local folder or hub id of the target.")],
    k_max: Annotated[
        int | None, typer.Option(min=1, max=64, help="Longest proposal. [default: the largest of --k, or 8]")
    ] = None,
    k: Annotated[
        str | None, typer.Option(help="K to choose among, as in 0,2,4,8. [default: all up to --k-max]")
    ] = None,
    method: Annotated[str, typer.Option(help="ngram, draft_model, eagle, eagle3 or mtp.")] = "ngram",
    draft_model: Annotated[str | None, typer.Option(help="Local folder or hub id of the drafter.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, max=65_536, help="Requests decoded together.")] = 256,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Prompt and output tokens of a request.")
    ] = None,
    prompt_lookup_min: Annotated[
        int | None, typer.Option(min=1, help="Shortest n-gram to match. [default: 2]")
    ] = None,
    prompt_lookup_max: Annotated[
        int | None, typer.Option(min=1, help="Longest n-gram to match. [default: 4]")
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that share the model.")] = 1,
    dtype: Annotated[str, typer.Option(help="vLLM's --dtype.")] = "auto",
    sidecar: Annotated[str | None, typer.Option(help="Endpoint of the sidecar. [default: its own]")] = None,
    engine_id: Annotated[str | None, typer.Option(help="Name of this engine. [default: vllm-0]")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Do not start where K cannot be steered.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let the sidecar be on another machine, without keys.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the command that launches vLLM ready to be steered, and what its largest K costs in memory."""
    from steersman_engine.adapters.vllm import arguments

    launch = arguments.Launch(
        model=model,
        method=method,
        draft_model=draft_model,
        k=k,
        k_max=k_max,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        prompt_lookup_min=prompt_lookup_min,
        prompt_lookup_max=prompt_lookup_max,
        tensor_parallel=tensor_parallel,
        dtype=dtype,
        sidecar=sidecar,
        engine_id=engine_id,
        strict=strict,
        insecure=insecure,
    )
    if as_json:
        print(json.dumps(arguments.described(launch)))
        return
    for line in (*arguments.shell_lines(launch), *arguments.cost_lines(launch, arguments.costs(launch))):
        print(line)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """A part of the benchmark that does not start is no bug of the benchmark."""
    try:
        yield
    except RuntimeError as error:
        print(f"steersman: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _judge(result: dict[str, Any], as_json: bool) -> None:
    """Show a benchmark's result; exit code 1 where it has not passed."""
    _show(result, as_json)
    if not result["passed"]:
        raise typer.Exit(1)


def _show(result: dict[str, Any], as_json: bool) -> None:
    """The result as one JSON object, or as a table with a row per figure."""
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value")
    for name, value in _figures(result):
        table.add_row(name, value)
    Console().print(table)


def _figures(result: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values, in order."""
    for key, value in result.items():
        if isinstance(value, dict):
            yield from _figures(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
