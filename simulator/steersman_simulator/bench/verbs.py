"""The verb `bench simulator`; what is heavy is imported when it runs."""

import json
import os
import sys
from typing import Annotated

import typer


def bench_simulator(
    virtual_s: Annotated[float, typer.Option(min=1.0, help="Simulated seconds of each timed run.")] = 120.0,
    segments: Annotated[int, typer.Option(min=1, max=16, help="Kinds of traffic.")] = 4,
    output_tokens: Annotated[int, typer.Option(min=1, help="Mean output tokens of a timed request.")] = 512,
    requests: Annotated[
        int, typer.Option(min=0, help="Requests of the run whose memory is measured; 0: none.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all chance.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Measure how much faster than real time the simulator runs, and what a million requests need."""
    # One core is what is measured; this must be said before numpy is imported.
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    from steersman_simulator.bench.simulator import run

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    result = run(
        virtual_s=virtual_s,
        segments=segments,
        output_tokens=output_tokens,
        requests=requests,
        seed=seed,
        progress=progress,
    )
    print(json.dumps(result, indent=None if as_json else 2))
    return 0 if result["passed"] else 1
