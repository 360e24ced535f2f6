"""One K for everybody, always: what engines do today."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import constant_plan
from steersman_policies.units import ProposalLength
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """`k`: the proposal length; clamped to the largest reachable K below it."""

    version: ClassVar[str] = "1"
    k: ProposalLength = 4

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = `k` everywhere."""
        return constant_plan(view, self.k, policy="fixed", version=self.version), memory
