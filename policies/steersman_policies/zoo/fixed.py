"""One K for everybody, always: what engines do today."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Dwell, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import at_most, constant_table, fallback_row, make_plan
from steersman_policies.units import UNKNOWN_SEGMENT, ProposalLength
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """`k`: the proposal length; clamped to the largest reachable K below it."""

    version: ClassVar[str] = "1"
    k: ProposalLength = 4

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = `k` everywhere."""
        k = at_most(view, self.k)
        plan = make_plan(
            view,
            policy="fixed",
            version=self.version,
            proposal_length={UNKNOWN_SEGMENT: constant_table(view, k)},
            fallback=fallback_row(view, lambda _: k),
            dwell=Dwell(steps=0, seconds=0.0),
        )
        return plan, memory
