"""The decode loop: continuous batching with ragged verification and a K per request.

One step verifies the drafts of the step before, commits what the target accepts, asks how many to
draft now, and drafts. At K=0 the drafter is not called and nothing else is added.

Threads: `submit` and `Request.cancelled` may be used from any; all else belongs to one thread.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count

from steersman_engine.decode.acceptance import Verdict, judge
from steersman_engine.decode.attention import Chunk
from steersman_engine.decode.drafting import Drafting
from steersman_engine.decode.model import TargetModel
from steersman_engine.decode.request import FinishReason, Request, Sampling
from steersman_engine.decode.slots import SlotCache
from steersman_engine.decode.tally import Tally, request_report
from steersman_engine.drafters.drafter import Drafter
from steersman_engine.rows import StepRows
from steersman_engine.steering import Steering
from steersman_policies.executor import Decision, Load
from steersman_policies.prompt_statistics import statistics_of

log = logging.getLogger(__name__)


class Engine:
    """Serves requests on a target. `clock` is monotonic seconds."""

    def __init__(
        self,
        target: TargetModel,
        *,
        steering: Steering,
        drafter: Drafter | None,
        clock: Callable[[], float],
        max_batch: int = 16,
        max_len: int = 2048,
        k_max: int = 8,
        prefill_tokens: int = 256,
    ) -> None:
        if max_len > target.max_positions:
            raise ValueError(f"max_len: {max_len}, the model {target.name} has {target.max_positions}")
        if target.window is not None and max_len > target.window:
            raise ValueError(f"max_len: {max_len}, the model {target.name} attends only {target.window} back")
        self.target = target
        self.steering = steering
        self.drafting = Drafting(drafter, k_max, target.vocab_size)
        self.clock = clock
        self.max_len = max_len
        self.prefill_tokens = prefill_tokens
        self.slots = SlotCache(max_batch, max_len)
        self.live: list[Request] = []
        """By slot: `live[i]` is in slot i."""
        self.waiting: deque[Request] = deque()
        self.steps = 0
        self.decision: Decision | None = None
        """The last one that was about somebody."""
        self._numbers = count()

    @property
    def busy(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self.live or self.waiting)

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        on_tokens: Callable[[Request, list[int]], None],
        segment: str = "",
        attributes: dict[str, str] | None = None,
    ) -> Request:
        """Queue a request. Raises ValueError for one that cannot be served."""
        if not prompt:
            raise ValueError("prompt: is empty")
        if len(prompt) + sampling.max_tokens > self.max_len:
            raise ValueError(
                f"max_tokens: {sampling.max_tokens} and a prompt of {len(prompt)} tokens "
                f"exceed max_len {self.max_len}"
            )
        if min(prompt) < 0 or max(prompt) >= self.target.vocab_size:
            raise ValueError(f"prompt: holds token ids outside 0 to {self.target.vocab_size - 1}")
        request = Request(
            number=next(self._numbers),
            segment=segment,
            attributes=attributes or {},
            prompt=list(prompt),
            sampling=sampling,
            statistics=statistics_of(
                prompt, max_output_tokens=sampling.max_tokens, temperature=sampling.temperature
            ),
            arrived_s=self.clock(),
            on_tokens=on_tokens,
        )
        self.waiting.append(request)
        return request

    def step(self) -> bool:
        """One round for the whole batch; False where there was nothing to do."""
        tally = Tally(self.clock())
        self._drop_cancelled()
        chunks = self._decode_chunks() + self._prefill_chunks(tally)
        if not chunks:
            return False
        self._verify_and_commit(chunks, tally)
        decision = self._decide(tally)
        self._draft(decision, tally)
        self._report(decision, tally)
        return True

    def fail_all(self, error: str) -> None:
        """End every live request with an error: a step went wrong in the middle."""
        for request in list(self.live):
            request.error = error
            self._finish(request, "error")

    def _drop_cancelled(self) -> None:
        for request in [request for request in self.live if request.cancelled]:
            self._finish(request, "cancelled")

    def _decode_chunks(self) -> list[Chunk]:
        """The last token and the drafts of every request that is past its prefill."""
        return [Chunk(r.slot, [r.tokens[-1], *r.drafts], True) for r in self.live if r.decoding]

    def _prefill_chunks(self, tally: Tally) -> list[Chunk]:
        """Pieces of prompts up to the step's budget; requests are admitted as they fit into it."""
        chunks: list[Chunk] = []
        budget = self.prefill_tokens
        for request in self.live:
            if not request.decoding:
                budget -= self._prefill_chunk(request, budget, chunks)
        while budget > 0 and self.waiting and len(self.live) < self.slots.max_batch:
            request = self.waiting.popleft()
            request.segment = self.steering.segment_of(
                request.segment, request.attributes, request.statistics
            )
            if request.cancelled:
                self._finish(request, "cancelled")
                continue
            self._admit(request, tally.started_s)
            budget -= self._prefill_chunk(request, budget, chunks)
        tally.prefill_tokens = self.prefill_tokens - budget
        return chunks

    def _admit(self, request: Request, now_s: float) -> None:
        request.slot = self.slots.append()
        request.admitted_s = now_s
        self.live.append(request)
        self.drafting.admit(request)

    def _prefill_chunk(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        start = self.slots.lengths[request.slot]
        piece = request.prompt[start : start + budget]
        if piece:
            chunks.append(Chunk(request.slot, piece, False))
        return len(piece)

    def _verify_and_commit(self, chunks: list[Chunk], tally: Tally) -> None:
        """One forward over all chunks; every request that has a next token gets it."""
        started_s = self.clock()
        keep: list[int] = []
        judged: list[Request] = []
        packed = 0
        for chunk in chunks:
            request, packed = self.live[chunk.slot], packed + len(chunk.tokens)
            if chunk.decode:
                keep += range(packed - len(chunk.tokens), packed)
                judged.append(request)
            elif self.slots.lengths[chunk.slot] + len(chunk.tokens) == len(request.prompt):
                keep.append(packed - 1)
                judged.append(request)
        # A step that only carries the middle of a prompt needs no logits, but the model returns some.
        logits = self.target.logits(self.slots, chunks, keep or [packed - 1])
        verdicts = judge(logits, judged) if judged else []
        verified_s = self.clock()
        tally.verify_s = verified_s - started_s
        for request, verdict in zip(judged, verdicts, strict=True):
            self._commit(request, verdict, verified_s, tally)

    def _commit(self, request: Request, verdict: Verdict, now_s: float, tally: Tally) -> None:
        """Append what was accepted, forget the cache behind it, and end the request where it ends."""
        drafted = len(request.drafts)
        length = self.slots.lengths[request.slot]
        tokens, reason = _cut(verdict.tokens, request)
        tally.add(request, length - drafted - 1, verdict.accepted, len(tokens))
        if request.decoding:
            request.steps += 1
            request.drafted += drafted
            request.accepted += verdict.accepted
            request.steps_drafted += drafted > 0
            request.reached += min(drafted, verdict.accepted + 1)
            self.slots.truncate(request.slot, length - (drafted - verdict.accepted))
            if drafted:
                self.drafting.commit(request, verdict.accepted)
        else:
            request.first_token_s = now_s
        request.tokens += tokens
        request.drafts, request.draft_probs, request.confidence = [], None, None
        if not self._deliver(request, tokens):
            reason = "error"
        if reason is not None:
            self._finish(request, reason)

    def _deliver(self, request: Request, tokens: list[int]) -> bool:
        try:
            request.on_tokens(request, tokens)
        except Exception as error:
            log.exception("request %d: its receiver failed", request.number)
            request.error = str(error)
            return False
        return True

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """Take a request out, let the last slot move into its place, and say that it is over."""
        request.finish_reason = reason
        if request.slot >= 0:
            moved = self.slots.free(request.slot)
            last = self.live.pop()
            if moved is not None:
                self.live[request.slot] = last
                last.slot = request.slot
            request.slot = -1
            self.drafting.release(request)
        self.steering.finished(request_report(request, self.clock()))
        self._deliver(request, [])

    def _decide(self, tally: Tally) -> Decision:
        """Ask for K by segment, for the batch as it is now."""
        decoding = [request for request in self.live if request.decoding]
        context_tokens = sum(len(request.tokens) for request in decoding)
        decision = self.steering.decide(
            Load(
                step=self.steps,
                decode_requests=Counter(request.segment for request in decoding),
                mean_context_tokens=context_tokens / len(decoding) if decoding else 0.0,
                prefill_tokens=tally.prefill_tokens,
                waiting=len(self.waiting),
            )
        )
        if decoding:
            self.decision = decision
        return decision

    def _draft(self, decision: Decision, tally: Tally) -> None:
        started_s = self.clock()
        tally.requests_drafting = self.drafting.draft(self.live, decision)
        if tally.requests_drafting:
            tally.draft_s = self.clock() - started_s

    def _report(self, decision: Decision, tally: Tally) -> None:
        rows: StepRows = tally.rows(
            step=self.steps,
            ended_s=self.clock(),
            waiting=len(self.waiting),
            kv_used_fraction=self.slots.used_fraction,
            decision=decision,
        )
        self.steps += 1
        self.steering.record(rows)


def _cut(tokens: list[int], request: Request) -> tuple[list[int], FinishReason | None]:
    """The tokens up to the end of the output, and why it ends there, if it does."""
    sampling = request.sampling
    left = request.left_tokens
    if not sampling.ignore_eos:
        for index, token in enumerate(tokens[:left]):
            if token in sampling.stop_ids:
                return tokens[: index + 1], "stop"
    return (tokens[:left], "length") if len(tokens) >= left else (tokens, None)
