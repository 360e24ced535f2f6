"""The policy of the benchmark's sidecars: what is asked for under a plan is never what is asked without."""

from typing import ClassVar

from msgspec import Struct

from steersman_engine.bench.driven import SEGMENTS
from steersman_policies.plan import Dwell, KTable, Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import at_most, make_plan
from steersman_policies.units import UNKNOWN_SEGMENT, ProposalLength
from steersman_policies.view import View

NAME = "bench_vllm"
OTHERS = SEGMENTS[1::2]
"""Segments with a K of their own."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """`k` for everybody but `OTHERS`, who get `other_k`; `fallback_k` without a lease."""

    version: ClassVar[str] = "1"
    k: ProposalLength = 8
    other_k: ProposalLength = 8
    fallback_k: ProposalLength = 8

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """The same in every cell, and no dwell."""
        batches, contexts = len(view.batch_edges) + 1, len(view.context_edges) + 1
        k, other_k, fallback_k = (at_most(view, k) for k in (self.k, self.other_k, self.fallback_k))
        plan = make_plan(
            view,
            policy=NAME,
            version=self.version,
            proposal_length=lengths(k, other_k, batches, contexts),
            fallback=(fallback_k,) * batches,
            dwell=Dwell(steps=0, seconds=0.0),
        )
        return plan, memory


def lengths(k: int, other_k: int, batches: int = 1, contexts: int = 1) -> dict[str, KTable]:
    """`other_k` for `OTHERS` and `k` for the rest, in every cell."""
    tables = {UNKNOWN_SEGMENT: ((k,) * contexts,) * batches}
    return tables | dict.fromkeys(OTHERS, ((other_k,) * contexts,) * batches)
