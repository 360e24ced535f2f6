"""Never draft: the baseline that everything is measured against."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Dwell, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import at_most, constant_table, fallback_row, make_plan
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""

    version: ClassVar[str] = "1"

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = 0 everywhere (the smallest reachable K where an engine cannot switch off)."""
        k = at_most(view, 0)
        plan = make_plan(
            view,
            policy="off",
            version=self.version,
            proposal_length={UNKNOWN_SEGMENT: constant_table(view, k)},
            fallback=fallback_row(view, lambda _: k),
            dwell=Dwell(steps=0, seconds=0.0),
        )
        return plan, memory
