"""How busy the engine has been lately, and with what.

A sum that fades with the engine's own clock: what was e seconds ago counts less by exp(-e / tau), so a
change of phase shows within a second or two however long the steps are. As in `acceptance`, the newest
evidence grows by a gain instead of everything else being shrunk.
"""

import math

from msgspec import Struct

from steersman_controller.belief.evidence import CONTEXTS
from steersman_policies.messages import StepReport
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT

FADE_S = 1.0
"""Seconds after which a request that is gone counts 1/e."""

PREFILL_GAIN = 0.1
"""Weight of the newest step that carried prefill in their mean."""

CROWDED_STEPS = 200
"""A segment unseen for this many steps makes room for a new one when all places are taken."""


class Presence(Struct):
    """How much of a segment was there, by context bucket, and when it was last seen."""

    contexts: list[float]
    last_step: int = 0


class LoadState(Struct):
    """What a `RecentLoad` has seen; part of a snapshot."""

    segments: dict[str, Presence]
    gain: float = 1.0
    at_s: float = 0.0
    seconds: float = 0.0
    """Busy seconds, faded; divides the sums below."""
    requests: float = 0.0
    context_tokens: float = 0.0
    prefill_tokens: float = 0.0
    """Mean over the recent steps that carried prefill."""
    steps: int = 0
    folded: int = 0
    """Groups counted as `unknown` because all places were taken."""


class RecentLoad:
    """Learns from reports which segments are present. At most `MAX_SEGMENTS`, `unknown` included."""

    def __init__(self) -> None:
        self.state = LoadState({UNKNOWN_SEGMENT: Presence([0.0] * CONTEXTS)})

    def admit(self, segment: str) -> tuple[str, str | None]:
        """The name under which a segment is kept, and the segment that had to go for it, if any."""
        segments = self.state.segments
        if segment in segments:
            return segment, None
        leaver = None
        if len(segments) >= MAX_SEGMENTS:
            leaver = min(
                (n for n in segments if n != UNKNOWN_SEGMENT), key=lambda n: (segments[n].last_step, n)
            )
            if self.state.steps - segments[leaver].last_step < CROWDED_STEPS:
                self.state.folded += 1
                return UNKNOWN_SEGMENT, None
            del segments[leaver]
        segments[segment] = Presence([0.0] * CONTEXTS)
        return segment, leaver

    def advance(self, report: StepReport) -> None:
        """Let what was there before fade, and take in the step as a whole."""
        state = self.state
        ended_s = report.started_s + report.busy_s
        passed_s = min(max(ended_s - state.at_s, 0.0), 50.0 * FADE_S) if state.steps else 0.0
        state.at_s = ended_s
        state.steps += 1
        state.gain *= math.exp(passed_s / FADE_S)
        if state.gain > 1e9:
            self._rescale()
        weight = report.busy_s * state.gain
        state.seconds += weight
        state.requests += report.decode_requests * weight
        state.context_tokens += report.context_tokens * weight
        if report.prefill_tokens:
            gain = PREFILL_GAIN if state.prefill_tokens else 1.0
            state.prefill_tokens += gain * (report.prefill_tokens - state.prefill_tokens)

    def add(self, segment: str, context_bucket: int, requests: int, busy_s: float) -> None:
        """Requests of an admitted segment were in the step that `advance` took in."""
        presence = self.state.segments[segment]
        presence.contexts[context_bucket] += requests * busy_s * self.state.gain
        presence.last_step = self.state.steps

    def restarted(self) -> None:
        """The engine's clock and its batch start anew."""
        self.state.steps = 0
        self.state.at_s = 0.0
        for presence in self.state.segments.values():
            presence.last_step = 0

    def shares(self) -> dict[str, float]:
        """Share of each known segment among the live decode requests, by name."""
        sums = {name: sum(self.state.segments[name].contexts) for name in sorted(self.state.segments)}
        total = sum(sums.values())
        return {name: min(value / total, 1.0) if total > 0.0 else 0.0 for name, value in sums.items()}

    def contexts(self) -> dict[str, list[float]]:
        """Presence of each segment by context bucket, any scale."""
        return {name: presence.contexts for name, presence in self.state.segments.items()}

    @property
    def mean_requests(self) -> float:
        """Live decode requests, averaged over busy time."""
        return self.state.requests / self.state.seconds if self.state.seconds > 0.0 else 0.0

    @property
    def mean_context_tokens(self) -> float:
        """Context of a live request."""
        return self.state.context_tokens / self.state.requests if self.state.requests > 0.0 else 0.0

    def _rescale(self) -> None:
        state, shrink = self.state, 1.0 / self.state.gain
        for presence in state.segments.values():
            presence.contexts[:] = [value * shrink for value in presence.contexts]
        state.seconds *= shrink
        state.requests *= shrink
        state.context_tokens *= shrink
        state.gain = 1.0
