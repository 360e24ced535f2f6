"""`steersman train` and `steersman inspect`. Light: everything heavy is imported inside the functions."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Many = list[str] | None


def train(
    step_times: Annotated[
        Path | None,
        typer.Option(
            help="CSV, JSONL or Parquet: batch_size, num_draft_tokens, step_ms; or runs of vllm bench serve."
        ),
    ] = None,
    columns: Annotated[Many, typer.Option(help="Names of the file's columns, as ours=theirs,...")] = None,
    by: Annotated[str, typer.Option(help="Columns that make groups with a model each, as a,b.")] = "",
    where: Annotated[Many, typer.Option(help="Use only rows with this value, as column=value.")] = None,
    recording: Annotated[Path | None, typer.Option(help="Learn from a recording instead.")] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="Acceptance by position: segment, position, acceptance.")
    ] = None,
    evaluate_choice: Annotated[
        str,
        typer.Option(help="Score the choice of K; acceptance is learned where this --by column differs."),
    ] = "",
    segments: Annotated[
        bool, typer.Option("--segments", help="Learn how to sort requests, and say whether that pays.")
    ] = False,
    acceptance_trace: Annotated[
        Path | None, typer.Option(help="JSONL of requests, or another recording, for --segments.")
    ] = None,
    target_config: Annotated[Path | None, typer.Option(help="The target's config.json: a prior.")] = None,
    drafter_config: Annotated[Path | None, typer.Option(help="The drafter's config.json.")] = None,
    device: Annotated[str, typer.Option(help="h100, h200, a100, l40s, rtx4090, rtxpro6000 or b200.")] = "",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices that share the target.")] = 1,
    operators: Annotated[
        Path | None, typer.Option(help="Folder of measured operator times: a better prior.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="Measured deployments to compare the prior with.")
    ] = None,
    measured_columns: Annotated[Many, typer.Option(help="Its columns, as ours=theirs,...")] = None,
    measured_where: Annotated[Many, typer.Option(help="Its rows, as column=value.")] = None,
    fingerprint: Annotated[
        Many, typer.Option(help="What it is for, as engine=vllm,target=...,device=...")
    ] = None,
    created_at: Annotated[str, typer.Option(help="Time of making, for the manifest; default: now.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the bundle to this file.")] = None,
    as_json: Json = False,
) -> int:
    """Train a step-time model, compile it to tables, and say how wrong it is where it has not looked.

    Models compete on batch sizes left out; the affine fit is shown beside them. With --target-config and
    --device alone the tables come from data sheets.
    """
    from steersman_controller.progress import progress_on
    from steersman_controller.train.request import request_of
    from steersman_controller.train.run import train as run
    from steersman_controller.train.show import result_lines, result_of

    request = request_of(
        step_times=step_times,
        columns=columns or [],
        by=by,
        where=where or [],
        recording=recording,
        acceptance=acceptance,
        evaluate_choice=evaluate_choice,
        segments=segments,
        acceptance_trace=acceptance_trace,
        target_config=target_config,
        drafter_config=drafter_config,
        device=device,
        tensor_parallel=tensor_parallel,
        operators=operators,
        measured=measured,
        measured_columns=measured_columns or [],
        measured_where=measured_where or [],
        fingerprint=fingerprint or [],
        created_at=created_at or datetime.now(UTC).isoformat(timespec="seconds"),
        out=out,
    )
    with progress_on(sys.stderr) as progress:
        trained = run(request, progress)
    if trained.warning:
        print(f"steersman: {trained.warning}", file=sys.stderr)
    found: dict[str, Any] = result_of(trained, out)
    print(json.dumps(found) if as_json else "\n".join(result_lines(trained, out)))
    return 0


def inspect(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `steersman train` made.")],
    plot: Annotated[Path | None, typer.Option(help="Draw the best K by batch into this file.")] = None,
    as_json: Json = False,
) -> int:
    """Show a bundle: evidence, error on batch sizes left out, worst cells, intervals, best K by batch."""
    from steersman_controller.train.bundle import read_bundle
    from steersman_controller.train.card import card_lines, described

    found = read_bundle(bundle)
    if plot is not None:
        from steersman_controller.train.crossover import draw

        draw(found, plot)
    print(json.dumps(described(found)) if as_json else "\n".join(card_lines(found)))
    return 0
