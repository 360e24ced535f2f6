"""`steersman validate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def validate(
    only: Annotated[str, typer.Option(help="These checks only, as V1,V7.")] = "",
    public_traces: Annotated[
        Path | None,
        typer.Option(help="The folder data/llama3.1-8B of github.com/SpecDecode-Bench/simulator."),
    ] = None,
    recording: Annotated[
        Path | None, typer.Option(help="A recording of a real engine, for V11: journal, Parquet or folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chance of the checks that draw.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Checks made at the same time.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Hold the simulator, the policies and the controller against theory and published numbers: V1 to V12.

    Exit code 1 where a check fails. V4, V5 and V10 need --public-traces, V11 a --recording; without, they are
    skipped and the reason is said.
    """
    import time

    from steersman_controller.progress import progress_on
    from steersman_simulator.report.show import encode_result
    from steersman_simulator.validate.check import Asked
    from steersman_simulator.validate.show import show
    from steersman_simulator.validate.suite import chosen, summary_of
    from steersman_simulator.validate.suite import validate as run

    checks = chosen([word.strip() for word in only.split(",") if word.strip()])
    asked = Asked(seed=seed, public_traces=public_traces, recording=recording)
    with progress_on(sys.stderr) as progress:
        results = run(checks, asked, clock=time.perf_counter, progress=progress, jobs=jobs)
    if json_output:
        print(encode_result(summary_of(results, asked)).decode())
    else:
        show(results)
    return int(any(result.verdict == "failed" for result in results))
