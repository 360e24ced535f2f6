"""The suite V1 to V12: which checks there are, and what becomes of them."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from steersman_controller.progress import Progress
from steersman_policies.policy import did_you_mean
from steersman_simulator.validate import (
    closed_batch,
    crossover,
    formulas,
    hazards,
    load,
    policies,
    queueing,
    ratio_trap,
    recording,
    tokens_per_step,
    walk,
)
from steersman_simulator.validate.check import Asked, Check, Figure, Skip

CHECKS: tuple[Check, ...] = (
    formulas.CHECK,
    tokens_per_step.CHECK,
    ratio_trap.CHECK,
    walk.CHECK,
    closed_batch.V5,
    closed_batch.V6,
    load.CHECK,
    crossover.CHECK,
    hazards.CHECK,
    policies.CHECK,
    recording.CHECK,
    queueing.CHECK,
)

MOST_SHOWN = 10
"""Figures outside their tolerance that a result lists."""

Clock = Callable[[], float]


class Result(Struct, frozen=True):
    """What became of a check. `figure`, `expected`, `found`: of the one nearest to its tolerance."""

    check: str
    name: str
    what: str
    verdict: Literal["passed", "failed", "skipped"]
    reason: str
    """Why it was skipped, how many figures failed, or what of a check that passed was left out."""
    tolerance: str
    figure: str
    expected: float | None
    found: float | None
    allowed: float | None
    """How far `found` may be from `expected`."""
    figures: int
    outside: tuple[Figure, ...]
    seconds: float


def chosen(only: Sequence[str]) -> tuple[Check, ...]:
    """The checks with these numbers; all for none. Raises ValueError for one that does not exist."""
    numbers = [check.number for check in CHECKS]
    wanted = [number.upper() for number in only]
    for number in wanted:
        if number not in numbers:
            raise ValueError(
                f"--only: no check {number!r}{did_you_mean(number, numbers)}; {', '.join(numbers)}"
            )
    return tuple(check for check in CHECKS if not wanted or check.number in wanted)


def judge(check: Check, asked: Asked, clock: Clock) -> Result:
    """Make one check."""
    started_s = clock()
    try:
        figures, skipped = list(check.figures(asked)), ""
    except Skip as why:
        figures, skipped = [], str(why)
    seconds = clock() - started_s
    outside = sorted((f for f in figures if not f.holds), key=lambda f: -f.strain)
    worst = max(figures, key=lambda f: f.strain, default=None)
    # A check that holds nothing against anything has shown nothing.
    failed = bool(outside) or not (figures or skipped)
    reason = f"{len(outside)} of {len(figures)} figures outside" if failed else skipped or check.left_out()
    return Result(
        check=check.number,
        name=check.name,
        what=check.what,
        verdict="failed" if failed else "skipped" if skipped else "passed",
        reason=reason,
        tolerance=check.tolerance,
        figure=worst.what if worst else "",
        expected=worst.expected if worst else None,
        found=worst.found if worst else None,
        allowed=worst.tolerance if worst else None,
        figures=len(figures),
        outside=tuple(outside[:MOST_SHOWN]),
        seconds=seconds,
    )


def validate(
    checks: Sequence[Check], asked: Asked, *, clock: Clock, progress: Progress, jobs: int = 1
) -> list[Result]:
    """Make all of these, in order; with `jobs` processes at once where there are more than one."""
    results = []
    found = _serially(checks, asked, clock) if jobs == 1 else _together(checks, asked, clock, jobs)
    progress(checks[0].name, 0.0)
    for done, result in enumerate(found, start=1):
        results.append(result)
        after = checks[done].name if done < len(checks) else "done"
        progress(after, done / len(checks))
    return results


def summary_of(results: Sequence[Result], asked: Asked) -> dict[str, Any]:
    """The JSON object of a run."""
    counts = {v: sum(r.verdict == v for r in results) for v in ("passed", "failed", "skipped")}
    checks = [asdict(r) | {"outside": [asdict(f) for f in r.outside]} for r in results]
    about = {"version": version("steersman"), "seed": asked.seed, "seconds": sum(r.seconds for r in results)}
    return {**counts, **about, "checks": checks}


def _serially(checks: Sequence[Check], asked: Asked, clock: Clock) -> Iterator[Result]:
    for check in checks:
        yield judge(check, asked, clock)


def _together(checks: Sequence[Check], asked: Asked, clock: Clock, jobs: int) -> Iterator[Result]:
    from joblib import Parallel, delayed

    work = (delayed(judge)(check, asked, clock) for check in checks)
    found: Iterator[Result] = Parallel(n_jobs=jobs, return_as="generator")(work)
    return found
