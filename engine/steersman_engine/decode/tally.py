"""What the engine notes down while a step runs: columns for the link, and reports of ended requests."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from steersman_engine.decode.request import Request
from steersman_engine.rows import StepRows
from steersman_policies.executor import Decision
from steersman_policies.messages import RequestReport


class Tally:
    """The columns of a step that is under way."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.verify_s = 0.0
        self.draft_s = 0.0
        self.prefill_tokens = 0
        self.first_tokens = 0
        self.requests_drafting = 0
        self._segments: list[str] = []
        self._context_tokens: list[int] = []
        self._commanded_k: list[int] = []
        self._drafted: list[int] = []
        self._accepted: list[int] = []
        self._committed: list[int] = []
        self._not_drafted: list[str] = []
        self._requests: list[int] = []
        self._confidence: list[Tensor | None] = []

    def add(self, request: Request, context_tokens: int, accepted: int, committed: int) -> None:
        """Note what a request committed; to be called before its state changes."""
        if not request.decoding:
            self.first_tokens += committed
            return
        self._segments.append(request.segment)
        self._context_tokens.append(context_tokens)
        self._commanded_k.append(request.commanded_k)
        self._drafted.append(len(request.drafts))
        self._accepted.append(accepted)
        self._committed.append(committed)
        self._not_drafted.append(request.not_drafted)
        self._requests.append(request.number)
        self._confidence.append(request.confidence)

    def rows(
        self, *, step: int, ended_s: float, waiting: int, kv_used_fraction: float, decision: Decision
    ) -> StepRows:
        """The finished columns."""
        other_s = ended_s - self.started_s - self.verify_s - self.draft_s
        return StepRows(
            step=step,
            started_s=self.started_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            other_s=max(0.0, other_s),
            segments=self._segments,
            context_tokens=self._context_tokens,
            commanded_k=self._commanded_k,
            drafted=self._drafted,
            accepted=self._accepted,
            committed=self._committed,
            not_drafted=self._not_drafted,
            prefill_tokens=self.prefill_tokens,
            first_tokens=self.first_tokens,
            requests_drafting=self.requests_drafting,
            waiting=waiting,
            kv_used_fraction=kv_used_fraction,
            decision=decision,
            requests=self._requests,
            confidence=_lists(self._confidence),
        )


def _lists(confidence: Sequence[Tensor | None]) -> list[list[float]]:
    """All numbers brought to the host at once; empty where there are none."""
    present = [probabilities for probabilities in confidence if probabilities is not None]
    if not present:
        return []
    flat = iter(torch.cat(present).tolist())
    return [[] if one is None else list(islice(flat, len(one))) for one in confidence]


def request_report(request: Request, ended_s: float) -> RequestReport:
    """How a request went that ended now."""
    output_tokens = len(request.tokens) - len(request.prompt)
    arrived_s, first_s = request.arrived_s, request.first_token_s
    gaps = output_tokens - 1
    return RequestReport(
        request=request.number,
        segment=request.segment,
        arrived_s=arrived_s,
        prompt_tokens=len(request.prompt),
        output_tokens=output_tokens,
        queue_s=max(0.0, (request.admitted_s or ended_s) - arrived_s),
        ttft_s=max(0.0, first_s - arrived_s) if output_tokens else 0.0,
        tpot_s=(ended_s - first_s) / gaps if gaps > 0 else 0.0,
        e2e_s=max(0.0, ended_s - arrived_s),
        steps=request.steps,
        drafted=request.drafted,
        accepted=request.accepted,
        finish_reason=request.finish_reason or "",
        reached=request.reached,
        steps_drafted=request.steps_drafted,
        statistics=request.statistics,
    )
