"""One K for everybody, always: what engines do today."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Explore, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import at_most, constant_plan
from steersman_policies.units import Fraction, ProposalLength
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """Both K are clamped to the largest reachable one that is not above them."""

    version: ClassVar[str] = "2"
    k: ProposalLength = 4
    explore: Fraction = 0.0
    """Share of steps that try `explore_k` on one segment, so that a recording can also tell of other K."""
    explore_k: ProposalLength = 8
    """A long one tells about all shorter ones."""

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = `k` everywhere, but for what is explored."""
        tried = Explore(view.seed, self.explore, (at_most(view, self.explore_k),)) if self.explore else None
        plan = constant_plan(view, self.k, policy="fixed", version=self.version, explore=tried)
        return plan, memory
