"""One engine of a world: a batch, its seconds, and its link to whoever chooses K."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from steersman_policies.executor import Decision
from steersman_policies.messages import StepReport
from steersman_simulator.truths.step_work import DraftWork, StepSeconds, VerifyWork
from steersman_simulator.world.batch import Batch
from steersman_simulator.world.outcome import Observer
from steersman_simulator.world.steering import Link
from steersman_simulator.world.step import Committed, Forward

_IDLE_RANK = VerifyWork(1, 0, 0)
"""What a rank without requests does so that the others can go on."""

_FEEDBACK_LAG_STEPS = 2


class Steps(Protocol):
    """What takes steps: an engine, or ranks that take them together."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        ...

    def verify(self, now_s: float) -> float:
        """Compose; seconds of the target's forward."""
        ...

    def commit(self, now_s: float, verify_s: float) -> int:
        """Take the outcome of the forward in, and choose K; the number of requests that are done."""
        ...

    def draft(self) -> tuple[float, float]:
        """Seconds of drafting, and of everything else."""
        ...

    def end(self, now_s: float, draft_s: float, other_s: float) -> None:
        """The step is over."""
        ...


class _Step(Struct, gc=False):
    """The step that is being taken."""

    forward: Forward
    verify_s: float = 0.0
    committed: Committed | None = None
    decision: Decision | None = None
    drafting: DraftWork | None = None
    other_s: float = 0.0
    draft_s: float = 0.0


class Engine:
    """Methods are called once a step, in the order of this file."""

    def __init__(
        self, number: int, batch: Batch, link: Link, seconds: StepSeconds, observer: Observer
    ) -> None:
        self.number = number
        self.batch = batch
        self.link = link
        self.seconds = seconds
        self._observer = observer
        self._is_async = batch.shape.scheduling == "async"
        self._unknown: deque[tuple[int, int, float]] = deque()
        """Tokens, decode requests and mean context of the steps whose outcome the scheduler does not know."""
        self._unsent: StepReport | None = None
        self._step: _Step | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.batch.idle

    def verify(self, now_s: float) -> float:
        """Compose; seconds of the target's forward."""
        forward = self.batch.compose(now_s)
        self._step = _Step(forward)
        if self._is_async:
            self._step.decision = self._decide_early(forward, now_s)
        return self.seconds.verify_s(forward.work)

    def run_along(self) -> float:
        """There is nothing to do, but the other ranks of a group need this one; seconds of that."""
        self._step = None
        return self.seconds.verify_s(_IDLE_RANK)

    def _decide_early(self, forward: Forward, now_s: float) -> Decision:
        """K as the scheduler chooses it before the forward: of the last two steps it knows nothing yet."""
        context = 0.0
        if len(self._unknown) == _FEEDBACK_LAG_STEPS:
            tokens, requests, context = self._unknown.popleft()
            self.link.committed(tokens, requests)
        return self.link.decide(self.batch.early_load(forward, context), now_s)

    def commit(self, now_s: float, verify_s: float) -> int:
        """Take the outcome of the forward in; the number of requests that are done."""
        step = self._step
        if step is None:
            return 0
        step.verify_s = verify_s
        committed = step.committed = self.batch.commit(step.forward, now_s)
        for done in committed.finished:
            self.link.send(done.report, now_s)
            self._observer.on_request(self.number, done)
        requests = step.forward.work.decode_requests
        load = self.batch.load(step.forward)
        if self._is_async:
            self._unknown.append((committed.tokens, requests, load.mean_context_tokens))
        else:
            self.link.committed(committed.tokens, requests)
            step.decision = self.link.decide(load, now_s)
        return len(committed.finished)

    @property
    def wanted_k(self) -> int | None:
        """The largest K that it chose; None where there is nothing to draft for."""
        decision = self._step.decision if self._step is not None else None
        return max(decision.proposal_length.values(), default=None) if decision is not None else None

    def draft(self, most: int | None = None) -> tuple[float, float]:
        """Draft, at most to `most`; seconds of drafting, and of everything else."""
        step = self._step
        if step is None:
            return 0.0, 0.0
        assert step.decision is not None
        assert step.committed is not None
        if most is not None and any(k > most for k in step.decision.proposal_length.values()):
            capped = {segment: min(k, most) for segment, k in step.decision.proposal_length.items()}
            step.decision = replace(step.decision, proposal_length=capped)
        drafting = step.drafting = self.batch.draft(step.decision.proposal_length, step.forward)
        other_s = self.seconds.other_s
        return (
            self.seconds.draft_s(drafting),
            other_s(
                decode_requests=step.forward.work.decode_requests, committed_tokens=step.committed.tokens
            ),
        )

    def end(self, now_s: float, draft_s: float, other_s: float) -> None:
        """The step is over."""
        step = self._step
        if step is None:
            return
        assert step.decision is not None
        assert step.committed is not None
        assert step.drafting is not None
        seconds = (draft_s, step.verify_s, other_s)
        if self.batch.makes_reports:
            report = self.batch.report(step.forward, step.committed, step.decision, step.drafting, seconds)
            if self._observer.wants_steps:
                self._observer.on_step(self.number, report)
            self._tell(report, now_s)
        self.batch.close(step.forward, step.committed, step.decision.switched, seconds)

    def _tell(self, report: StepReport, now_s: float) -> None:
        """Send it; under async scheduling it is known only when the next step is under way."""
        if not self._is_async:
            self.link.send(report, now_s)
            return
        if self._unsent is not None:
            self.link.send(self._unsent, now_s)
        self._unsent = report
        if self.batch.idle:
            self.link.send(report, now_s)
            self._unsent = None


class Ranks:
    """Engines in lock-step: every step lasts as long as the slowest of them needs.

    Idle ones run along with a forward of one token. All draft to the smallest K that any of them chose.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    @property
    def idle(self) -> bool:
        """Whether all are."""
        return all(engine.idle for engine in self._engines)

    def verify(self, now_s: float) -> float:
        """Seconds of the longest forward."""
        return max([e.run_along() if e.idle else e.verify(now_s) for e in self._engines])

    def commit(self, now_s: float, verify_s: float) -> int:
        """Requests that are done, of all of them."""
        return sum([engine.commit(now_s, verify_s) for engine in self._engines])

    def draft(self) -> tuple[float, float]:
        """Seconds of the slowest, part by part."""
        most = min([k for e in self._engines if (k := e.wanted_k) is not None], default=None)
        draft_s, other_s = zip(*[engine.draft(most) for engine in self._engines], strict=True)
        return max(draft_s), max(other_s)

    def end(self, now_s: float, draft_s: float, other_s: float) -> None:
        """The step is over for all of them."""
        for engine in self._engines:
            engine.end(now_s, draft_s, other_s)
