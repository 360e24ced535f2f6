"""`steersman bench fidelity`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def bench_fidelity(
    comparison: Annotated[Path, typer.Argument(help="YAML: what was measured, and how to simulate it.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder where its paths begin. Default: that of the file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
) -> int:
    """Simulate serving runs that were measured elsewhere, and say how far off the simulator is.

    kind: runs - real runs request by request; one overhead constant from one run predicts the others.
    kind: k_table - runs by drafter, K and concurrency; fitted at low concurrency on one data set, it predicts
    the rest, and the best K. Exit code 1 where an error is above its limit. See docs/fidelity.md.
    """
    from steersman_controller.progress import progress_on
    from steersman_simulator.fidelity.show import lines
    from steersman_simulator.fidelity.spec import compare, read_fidelity

    spec = read_fidelity(comparison)
    with progress_on(sys.stderr) as progress:
        result = compare(spec, comparison.parent if data is None else data, progress)
    print(json.dumps(result) if as_json else "\n".join(lines(result)))
    return 0 if result["passed"] else 1
