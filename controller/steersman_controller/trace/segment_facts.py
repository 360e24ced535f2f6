"""How the segments of a recording differ: which could be one, and which hold several kinds of requests."""

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from steersman_controller.autocorrelation import Autocorrelation
from steersman_controller.events import Received
from steersman_controller.request_spread import RequestSpread, alike, is_decided
from steersman_policies.messages import RequestReport, StepReport


class SegmentFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """One segment. Numbers about requests need engines that report decided draft tokens."""

    requests: int
    """Finished ones with a decided draft token."""
    acceptance: float
    """Accepted / reached over these."""
    between_sd: float
    """Standard deviation of acceptance between requests, beyond chance."""
    dispersion: float
    """Variance between requests over that of chance; what a request says counts this much less."""
    lag_one: float
    """Autocorrelation of a request's acceptance from step to step, easier and harder requests included."""
    worth_splitting: bool
    """Its requests differ by more than chance."""


class SegmentTally:
    """Collects the facts in one pass over records."""

    def __init__(self) -> None:
        self._spreads: dict[str, RequestSpread] = defaultdict(RequestSpread)
        self._steps: dict[tuple[str, str], Autocorrelation] = defaultdict(Autocorrelation)

    def add(self, event: Received) -> None:
        """A step or a finished request; anything else is ignored."""
        record = event.record
        if isinstance(record, RequestReport):
            if is_decided(record):
                self._spreads[record.segment].add(record.accepted, record.reached, record.steps_drafted)
        elif isinstance(record, StepReport) and record.trains:
            self._add_step(event.engine_id, record)

    def _add_step(self, engine_id: str, step: StepReport) -> None:
        sums: dict[str, tuple[int, int, int]] = {}
        for group in step.groups:
            requests, accepted, reached = sums.get(group.segment, (0, 0, 0))
            for drafted, kept, count in group.outcomes:
                requests += count
                accepted += count * kept
                reached += count * min(kept + 1, drafted)
            sums[group.segment] = requests, accepted, reached
        for segment, (requests, accepted, reached) in sums.items():
            self._steps[engine_id, segment].add(step.step, requests, accepted, reached)

    def facts(self) -> dict[str, SegmentFacts]:
        """By segment that drafted."""
        steps: dict[str, Autocorrelation] = {}
        for (_, segment), found in self._steps.items():
            steps[segment] = steps[segment].plus(found) if segment in steps else found
        drafted = {segment for segment, found in steps.items() if found.trials}
        return {
            segment: _facts(self._spreads.get(segment, RequestSpread()), steps.get(segment))
            for segment in sorted(drafted | {name for name, one in self._spreads.items() if one.requests})
        }

    def alike(self) -> list[tuple[str, str]]:
        """Pairs whose acceptance cannot be told apart, the most alike first."""
        return alike(self._spreads)


def segment_facts(records: Iterable[Received]) -> dict[str, SegmentFacts]:
    """Of a whole recording."""
    tally = SegmentTally()
    for event in records:
        tally.add(event)
    return tally.facts()


def _facts(spread: RequestSpread, steps: Autocorrelation | None) -> SegmentFacts:
    return SegmentFacts(
        requests=int(spread.requests),
        acceptance=spread.acceptance,
        between_sd=spread.between_sd,
        dispersion=spread.dispersion,
        lag_one=0.0 if steps is None else steps.lag_one,
        worth_splitting=spread.worth_splitting,
    )


def facts_line(segment: str, facts: SegmentFacts) -> str:
    """For people."""
    if not facts.requests:
        return f"{segment}: autocorrelation {facts.lag_one:.2f}; its engine tells no decided draft tokens"
    split = "; holds more than one kind of request" if facts.worth_splitting else ""
    return (
        f"{segment}: acceptance {facts.acceptance:.3f} over {facts.requests} requests, "
        f"between requests +-{facts.between_sd:.3f} beyond chance (dispersion {facts.dispersion:.1f}), "
        f"autocorrelation {facts.lag_one:.2f}{split}"
    )
