"""What the reports of one engine have taught: load, acceptance, cost, and a watch over the last two.

The belief is a function of the reports alone. Reports wait until somebody asks, or until there are many;
then they are folded in together, with the same result whenever that happens. A live controller and a
simulated one that ask at different moments therefore believe the same, bit for bit.

A chunk of reports that is folded at once ends where the belief settles (after counts of steps, see
`arrays`), where the watch raises an alarm, and where a segment has to make room for another.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from steersman_controller.belief.acceptance import Acceptance, AcceptanceState
from steersman_controller.belief.arrays import Array, Counts, Mask, block_steps
from steersman_controller.belief.columns import Columns, columns
from steersman_controller.belief.cost import CostModel, CostState
from steersman_controller.belief.decay import Decay, DecayState
from steersman_controller.belief.estimate import PRIOR, Estimate
from steersman_controller.belief.load import LoadState, RecentLoad
from steersman_controller.belief.prior import Prior
from steersman_controller.belief.steps import Sight
from steersman_controller.belief.tally import Tally
from steersman_controller.belief.watch import Watch, WatchState
from steersman_policies.messages import Hello, StepReport
from steersman_policies.units import MAX_SEGMENTS
from steersman_policies.view import SegmentBelief

FOLD_AT = 256
"""Reports that wait at most."""

USUAL_LOG_ERROR = 0.05
"""Unit of the residuals of step seconds."""

ACCEPTANCE = slice(0, MAX_SEGMENTS)
COVERAGE = slice(MAX_SEGMENTS, 2 * MAX_SEGMENTS)
COST = slice(2 * MAX_SEGMENTS, None)
"""Channels of the watch: two by segment, one by interval of tokens."""

BURSTY_SECONDS = 4.0
"""Variance of the residuals of step seconds that is assumed at first."""

BURSTY_DRAFTS = 2.0
"""Variance of the residuals of acceptance that is assumed at first; independent drafts would show 1."""


class Drift(Struct, frozen=True):
    """The watch saw a stream leave its level, in the given step of those that were learned."""

    kind: str
    """acceptance, coverage, cost or decay."""
    segment: str
    """Empty for cost."""
    step: int


class BeliefState(Struct):
    """Everything learned; part of a snapshot."""

    steps: int
    calm_steps: int
    filled: int
    load: LoadState
    acceptance: AcceptanceState
    cost: CostState
    watch: WatchState
    decay: DecayState


class Belief:
    """Learns from the reports of one engine."""

    def __init__(self, hello: Hello, prior: Prior | None = None) -> None:
        self.k_max = hello.k_max
        self.tally = Tally(hello.k_max)
        """Everything counted since this process began, what does not train included."""
        self.refused = 0
        """Reports that contradict themselves."""
        self.drifts: list[Drift] = []
        """The newest `FOLD_AT` alarms; whoever takes them empties the list."""
        self.alarms: Counter[str] = Counter()
        """Their number so far, by kind."""
        self._steps = 0
        """Steps that taught something, before the present block."""
        self._calm_steps = 0
        """Of those, since the last alarm."""
        self._filled = 0
        """In the present block."""
        self._load = RecentLoad()
        self._acceptance = Acceptance(hello.k_max, prior)
        self._cost = CostModel(hello, None if prior is None else prior.cost)
        self._watch = Watch(
            np.array([BURSTY_DRAFTS] * 2 * MAX_SEGMENTS + [BURSTY_SECONDS] * self._cost.verify.intervals)
        )
        contexts = self._acceptance.evidence.state.by_context.shape[2]
        self._decay = Decay(contexts, hello.launch_k or max(hello.k_max // 2, 1))
        self._waiting: list[StepReport] = []

    def observe(self, report: StepReport) -> None:
        """Take a report in; it counts in whatever is asked afterwards."""
        self._waiting.append(report)
        if len(self._waiting) >= FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Learn from the reports that wait. When this happens makes no difference to anything."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        every, sane = columns(waiting, self.k_max)
        self.refused += len(waiting) - len(sane)
        self.tally.add(every, sane)
        at = 0
        while at < every.steps:
            at += self._learn(every.cut(at, every.steps))

    def taken_drifts(self) -> list[Drift]:
        """Alarms since the last call."""
        self.fold()
        taken, self.drifts = self.drifts, []
        return taken

    def restarted(self) -> None:
        """The same engine booted again: its clock and its batch start anew."""
        self.fold()
        self._load.restarted()

    @property
    def _block(self) -> int:
        """Length of the present block."""
        return block_steps(self._calm_steps)

    @property
    def load(self) -> RecentLoad:
        """What is present."""
        self.fold()
        return self._load

    @property
    def cost(self) -> CostModel:
        """What steps cost."""
        self.fold()
        return self._cost

    @property
    def acceptance(self) -> Acceptance:
        """How often drafts are accepted."""
        self.fold()
        return self._acceptance

    @property
    def watch(self) -> Watch:
        """What keeps an eye on change."""
        self.fold()
        return self._watch

    def segments(self, fleet: Estimate = PRIOR) -> tuple[SegmentBelief, ...]:
        """Belief about each known segment, `unknown` included, by name; it leans on `fleet`."""
        load = self.load
        bursts = self._watch.long_run_variance()[ACCEPTANCE]
        return self._acceptance.beliefs(load.rows, load.shares(), load.state.presence, bursts, fleet)

    def bursts(self) -> dict[str, tuple[float, float]]:
        """By segment, where measured: lag-1 autocorrelation of the residuals of acceptance by step, and
        their variance against that of independent drafts."""
        watch, rows = self.watch.state, self.load.rows
        return {
            name: (float(watch.rho[row]), float(watch.variance[row]))
            for name, row in rows.items()
            if watch.variance[row] > 0.0
        }

    def differ(self, segment: str, wander: float) -> None:
        """From now on take it that requests of a segment differ: their live ones' mean moves by this standard
        deviation, in units of what chance does to one draft."""
        self.fold()
        row = self._load.rows.get(segment)
        if row is not None:
            self._watch.state.wander[row] = wander

    def state(self) -> BeliefState:
        """Everything learned; shares its arrays with the belief, so encode it at once."""
        self.fold()
        return BeliefState(
            steps=self._steps,
            calm_steps=self._calm_steps,
            filled=self._filled,
            load=self._load.state,
            acceptance=self._acceptance.state,
            cost=self._cost.state,
            watch=self._watch.state,
            decay=self._decay.state,
        )

    def restore(self, state: BeliefState) -> None:
        """Continue from a snapshot of an engine of the same size."""
        self._waiting = []
        self._steps, self._calm_steps, self._filled = state.steps, state.calm_steps, state.filled
        self._load.restore(state.load)
        self._acceptance.restore(state.acceptance)
        self._cost.restore(state.cost)
        self._watch.state = state.watch
        self._decay.state = state.decay

    def _learn(self, waiting: Columns) -> int:
        """Learn from the first steps of these, as many as can be taken at once; how many that were."""
        fitting = self._load.fitting(waiting)
        if fitting == 0:
            self._load.rescale(float(waiting.started_s[0]))
            fitting = self._load.fitting(waiting)
        chunk = waiting.cut(0, fitting)
        left = self._block - self._filled
        if chunk.steps >= left and (teaching := np.flatnonzero(chunk.trains)).size >= left:
            chunk = chunk.cut(0, int(teaching[left - 1]) + 1)
        placed = self._load.place(chunk)
        if placed.steps == 0:
            self._free(placed.leaver)
            return 0
        chunk = chunk.cut(0, placed.steps)
        sight = self._cost.look(chunk)
        taught, alarmed = self._watch.advance(*self._residuals(chunk, placed.rows, sight))
        steps = int(np.flatnonzero(chunk.trains)[taught - 1]) + 1 if len(alarmed) else chunk.steps
        if steps < chunk.steps:
            chunk, sight = chunk.cut(0, steps), sight.taken(sight.steps < steps)
        rows = placed.rows[: len(chunk.names)]
        self._load.add(chunk, rows)
        self._load.state.folded += sum(group < len(rows) for group in placed.unknown)
        self._acceptance.learn(chunk, rows)
        self._cost.learn(chunk, sight)
        self._filled += taught
        if len(alarmed) or self._filled == self._block:
            self._settle(alarmed.tolist())
        if steps == placed.steps:
            self._free(placed.leaver)
        return steps

    def _residuals(self, chunk: Columns, rows: Counts, sight: Sight) -> tuple[Array, Mask]:
        """Residuals of all channels, by step that teaches."""
        shape = (int(np.count_nonzero(chunk.trains)), len(self._watch.prior_variance))
        residuals, observed = np.zeros(shape), np.zeros(shape, np.bool_)
        self._acceptance.look(chunk, rows, residuals, observed)
        at = (chunk.trains.cumsum()[sight.steps] - 1, sight.interval + COST.start)
        residuals[at] = sight.log_error / USUAL_LOG_ERROR
        observed[at] = ~chunk.after_switch[sight.steps]
        return residuals, observed

    def _settle(self, alarmed: Sequence[int]) -> None:
        """End the block; after an alarm short ones follow, as at the beginning."""
        self._doubt(alarmed)
        self._calm_steps = 0 if alarmed else self._calm_steps + self._filled
        self._steps += self._filled
        self._filled = 0
        self._load.settle()
        evidence = self._acceptance.evidence
        decayed = self._decay.look(evidence, evidence.state.asked_steps)
        for row in decayed.tolist():
            self._note(Drift("decay", self._load.state.names[row], self._steps))
        self._acceptance.settle()
        self.tally.errors(self._cost.settle())
        renewed = self._watch.settle()
        if renewed.any():
            seen = self._watch.state.made_of[: COST.start]
            self._acceptance.refer(renewed[ACCEPTANCE], renewed[COVERAGE], seen)
            self._cost.refer(renewed[COST])

    def _doubt(self, alarmed: Sequence[int]) -> None:
        """Forget what the watch saw contradicted, and say so."""
        at = self._steps + self._filled
        if any(channel >= COST.start for channel in alarmed):
            self._cost.doubt()
            # What slows one step down slows all of them down: no reference is right any more.
            self._watch.forget(np.arange(COST.start, len(self._watch.prior_variance)))
            self._note(Drift("cost", "", at))
        drafts = [channel for channel in alarmed if channel < COST.start]
        for row in sorted({channel % MAX_SEGMENTS for channel in drafts}):
            self._acceptance.doubt(np.array([row]))
            self._watch.forget(np.array([row, row + MAX_SEGMENTS]))
            kind = "acceptance" if row in drafts else "coverage"
            self._note(Drift(kind, self._load.state.names[row], at))

    def _note(self, drift: Drift) -> None:
        self.alarms[drift.kind] += 1
        self.drifts = [*self.drifts[-FOLD_AT + 1 :], drift]

    def _free(self, row: int | None) -> None:
        if row is None:
            return
        self._load.free(row)
        self._acceptance.free(row)
        self._decay.free(row)
        self._watch.free(np.array([row, row + MAX_SEGMENTS]))
