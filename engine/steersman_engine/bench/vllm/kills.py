"""Real sidecars killed with SIGKILL while a real engine decodes, each followed by another one."""

import random
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from steersman_engine.bench.expiry import FALLBACK_K, LEASE_S, PLAN_K, Judge, Trial
from steersman_engine.bench.stand_in import LEASE_INTERVAL_S
from steersman_engine.bench.vllm.attached import Attached

SHOWN_S = 30.0
"""How long a plan's or the fallback's drafts may take to show."""


class Killed(Struct, frozen=True):
    """What came of one kill."""

    trial: Trial
    returned_after_s: float | None
    """From the start of the next sidecar to the first drafts by its plan; None: there were none."""


def real_kills(
    number: int,
    rng: random.Random,
    attached: Attached,
    step: Callable[[], None],
    progress: Callable[[str], None],
) -> list[Killed]:
    """Kill `number` sidecars at random points of the lease. The last successor stays alive.

    Raises RuntimeError where a sidecar does not come up.
    """
    _start(attached, step)
    killed = []
    for count in range(1, number + 1):
        killed.append(_kill(rng, attached, step))
        progress(f"killed {count} of {number} sidecars")
    attached.watch.judge = None
    return killed


def _kill(rng: random.Random, attached: Attached, step: Callable[[], None]) -> Killed:
    watch, counted = attached.watch, attached.link.hook.decisions_after_expiry
    watch.judge = judge = Judge(LEASE_S)
    _step_until(step, lambda: judge.followed)
    kill_s = time.monotonic() + rng.uniform(0.0, 3 * LEASE_INTERVAL_S)
    _step_until(step, lambda: time.monotonic() >= kill_s)
    judge.killed(time.monotonic())
    attached.sidecars.kill()
    _step_until(step, lambda: judge.fallback_at_s is not None)
    # A while longer: a plan that came back would be seen.
    end_s = time.monotonic() + LEASE_S / 4
    _step_until(step, lambda: time.monotonic() >= end_s)
    fallback_after_s = judge.verdict(0).fallback_after_s  # later, a new sidecar may bring it about
    returned_after_s = _start(attached, step)
    trial = judge.verdict(attached.link.hook.decisions_after_expiry - counted)
    return Killed(msgspec.structs.replace(trial, fallback_after_s=fallback_after_s), returned_after_s)


def _start(attached: Attached, step: Callable[[], None]) -> float | None:
    """Start a sidecar; seconds until its plan shows in the drafts."""
    started_s = time.monotonic()
    attached.sidecars.steer(PLAN_K, PLAN_K, FALLBACK_K)
    attached.wait(step)
    if _step_until(step, lambda: attached.watch.drafted_k == PLAN_K):
        return time.monotonic() - started_s
    return None


def _step_until(step: Callable[[], None], condition: Callable[[], bool]) -> bool:
    """Step until it holds; whether it did in time."""
    deadline_s = time.monotonic() + SHOWN_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        step()
    return True
