"""Compile what a controller runs, before engines wait for it: their leases would lapse."""

import random

from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig
from steersman_policies import policy
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import Fingerprint, Group, Hello, StepReport

K_MAX = 2
STEPS = 64
"""Enough for references to be made, and made anew."""


def warm_up() -> None:
    """Let a controller learn from made-up reports and plan: all its loops are compiled, or read from disk.

    Takes about 20 s the first time on a machine and after an upgrade, else less than a second.
    """
    fingerprint = Fingerprint("none", "0", "none", "none", "0", "none", "none", "none", "none", "none")
    hello = Hello(fingerprint, K_MAX, (0, 1, 2), 0, 1, 4, True, True, False, True)
    controller = Controller(
        hello, fingerprint_digest(fingerprint), policy.load("goodput", {}), ControllerConfig()
    )
    chance = random.Random(0)  # noqa: S311 - chance that replays
    for step in range(STEPS):
        report = _report(step, chance.choice((0, 1, 2)), chance.lognormvariate(0.0, 0.1))
        controller.observe(report, report.started_s)
        controller.belief.fold()
    controller.plan(float(STEPS))
    controller.status(float(STEPS))


def _report(step: int, accepted: int, slow: float) -> StepReport:
    drafting = Group("unknown", 0, 2, K_MAX, 1, ((K_MAX, accepted, 1),), not_drafted={"no_match": 1})
    return StepReport(
        step=step,
        started_s=0.01 * step,
        draft_s=0.0005,
        verify_s=0.005 * slow,
        other_s=0.0005,
        decode_requests=2,
        prefill_tokens=step % 2,
        target_tokens=2 + K_MAX + step % 2,
        context_tokens=100,
        drafting_depth=K_MAX,
        requests_drafting=2,
        waiting=0,
        kv_used_fraction=0.0,
        committed_tokens=2 + accepted,
        plan_id=0,
        groups=(drafting,),
        reason="table",
    )


if __name__ == "__main__":
    warm_up()
