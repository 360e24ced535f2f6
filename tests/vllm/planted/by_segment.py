"""A policy with a K of its own for each segment and another one for the time without a lease."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Dwell, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import make_plan
from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """`k` by segment; `other` for the rest; `fallback` without a lease."""

    version: ClassVar[str] = "1"
    k: dict[str, int] = {}
    other: int = 0
    fallback: int = 0

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """The same in every cell."""
        batches, contexts = len(view.batch_edges) + 1, len(view.context_edges) + 1
        lengths = {UNKNOWN_SEGMENT: self.other, **self.k}
        plan = make_plan(
            view,
            policy="by_segment",
            version=self.version,
            proposal_length={name: ((k,) * contexts,) * batches for name, k in lengths.items()},
            fallback=(self.fallback,) * batches,
            dwell=Dwell(steps=0, seconds=0.0),
        )
        return plan, memory
