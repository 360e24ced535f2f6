"""The verbs about traces: what one holds, and to turn a foreign one into ours."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def trace_inspect(
    path: Annotated[Path, typer.Argument(help="A recording, an acceptance trace, or a trace of requests.")],
    as_json: Json = False,
) -> int:
    """Say what a recording, an acceptance trace or a trace of requests holds.

    Of a recording: events, engines, seconds, segments, policies, and what was lost. Of an acceptance trace:
    requests, drafters, and what a few K would have brought. Of a trace of requests (Azure, Mooncake,
    BurstGPT, `vllm bench serve`, our own): requests, rate, burstiness, lengths, shared prefixes.
    """
    from steersman_policies.acceptance_trace import is_acceptance_trace
    from steersman_simulator.workload.recognise import recognised

    if is_acceptance_trace(path) or recognised(path).__struct_config__.tag == "recording":
        from steersman_controller.verbs import trace_inspect as of_recording

        return of_recording(path, as_json)
    return _tell(_inspected(path), as_json)


def trace_import(
    path: Annotated[Path, typer.Argument(help="The trace to read; also as .gz.")],
    out: Annotated[Path, typer.Option(help="The file to write, one request a line: .jsonl or .jsonl.gz.")],
    source: Annotated[
        str, typer.Option("--from", help="azure, mooncake, burstgpt, vllm_bench, table, recording.")
    ] = "",
    sort: Annotated[
        bool, typer.Option("--sort", help="For a file that is not in the order of time.")
    ] = False,
    segment_column: Annotated[str, typer.Option(help="The column that says a request's segment.")] = "",
    columns: Annotated[
        list[str] | None, typer.Option(help="Other names of the columns of a table, as ours=theirs,...")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chance, where arrivals are spread or drawn.")] = 0,
    as_json: Json = False,
) -> int:
    """Turn a trace of requests into our own format; what kind it is shows in its columns, or say --from."""
    from steersman_controller.train.table_file import pairs
    from steersman_simulator.workload.export import import_trace
    from steersman_simulator.workload.recognise import recognised, trace_kind

    kind = trace_kind(source) if source else trace_kind("table") if columns else recognised(path)
    options: dict[str, Any] = {"path": str(path)}
    options |= {"sort": True} if sort else {}
    options |= {"segment_column": segment_column} if segment_column else {}
    options |= {"columns": pairs(columns, "--columns")} if columns else {}
    return _tell(import_trace(kind, options, out, seed), as_json)


def _inspected(path: Path) -> dict[str, Any]:
    from steersman_simulator.workload.facts import workload_facts
    from steersman_simulator.workload.recognise import recognised
    from steersman_simulator.workload.spec import read_arrivals
    from steersman_simulator.workload.trace_file import Lost

    kind, lost = recognised(path), Lost()
    facts = workload_facts(read_arrivals(kind(path=str(path)), Path(), 0, lost=lost))
    return {"path": str(path), "kind": str(kind.__struct_config__.tag)} | facts | {"left_out": dict(lost)}


def _tell(found: dict[str, Any], as_json: bool) -> int:
    from steersman_simulator.workload.facts import facts_lines

    print(json.dumps(found) if as_json else "\n".join(facts_lines(found)), file=sys.stdout)
    return 0
