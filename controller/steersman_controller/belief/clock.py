"""Whether the engine's clock can be believed."""

from typing import Literal

AHEAD_S = 5.0
"""By so much a report may seem to come from the future before it counts as impossible."""

LARGEST_S = 1e9


class EngineClock:
    """Reads the engine's clock off its reports, against the moments of their arrival.

    Steps start in order, and none is reported before it has happened: the shortest way that any report took
    says what the two clocks differ by. A report that does not fit is impossible; when the next one fits to
    *it*, the clock has really been set, and counts from there.
    """

    def __init__(self) -> None:
        self._started_s: float | None = None
        self._offset_s = float("inf")
        """Least difference between arrival and end of a step."""
        self._odd_s: float | None = None
        """Start of the last impossible step."""

    def read(self, started_s: float, busy_s: float, now_s: float) -> Literal["fits", "stepped", "impossible"]:
        """What a step that started then and arrives now says; "stepped" where the clock begins anew."""
        if not (0.0 <= started_s <= LARGEST_S and 0.0 <= busy_s <= LARGEST_S):
            return "impossible"
        offset_s = now_s - (started_s + busy_s)
        if self._started_s is None:
            return self._go_on(started_s, offset_s, "fits")
        if started_s >= self._started_s and offset_s >= self._offset_s - AHEAD_S:
            return self._go_on(started_s, min(offset_s, self._offset_s), "fits")
        if self._odd_s is not None and abs(started_s - self._odd_s) <= AHEAD_S:
            return self._go_on(started_s, offset_s, "stepped")
        self._odd_s = started_s
        return "impossible"

    def _go_on(
        self, started_s: float, offset_s: float, verdict: Literal["fits", "stepped"]
    ) -> Literal["fits", "stepped"]:
        self._started_s, self._offset_s, self._odd_s = started_s, offset_s, None
        return verdict
