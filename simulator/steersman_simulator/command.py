"""What `steersman simulate` does once its options are understood."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from steersman_policies.policy import did_you_mean
from steersman_simulator.report import show
from steersman_simulator.run_scenario import Progress, run_scenario
from steersman_simulator.scenario import read_scenario
from steersman_simulator.simulate import Settings, simulate


def simulate_scenario(
    path: Path, changed: Mapping[str, Any], *, as_json: bool, out: Path | None = None, **options: Any
) -> None:
    """Run a scenario file and show its result; `options` as in `run_scenario`."""
    scenario = read_scenario(path, changed)
    with _progress() as progress:
        result = run_scenario(scenario, path.parent, out=out, progress=progress, **options)
    _tell(result, as_json)


def simulate_recording(settings: Settings, out: Path | None, as_json: bool) -> None:
    """Fit a world on a recording, serve its arrivals again, and show the result."""
    _tell(simulate(settings, out)[0], as_json)


def print_example(name: str) -> None:
    """An example scenario on standard output, or the names of all. Raises ValueError for another name."""
    held = files("steersman_simulator.examples")
    names = sorted(each.name.removesuffix(".yaml") for each in held.iterdir() if each.name.endswith(".yaml"))
    if name == "list":
        print("\n".join(names))
    elif name not in names:
        raise ValueError(
            f"--example: no {name!r}{did_you_mean(name, names)}; allowed: {', '.join(names)}, list"
        )
    else:
        print(held.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), end="")


def _tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(show.encode_result(result).decode())
    else:
        show.show(result)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A line on a terminal; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status("starting") as status:

        def tell(at_s: float, requests: int) -> None:
            status.update(f"simulated {at_s:,.0f} s, {requests:,} requests")

        yield tell
