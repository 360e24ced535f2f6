"""Whether the engine's clock can be believed."""

import math
from typing import Literal

AHEAD_S = 5.0
"""By so much a report may seem to come from the future before it counts as impossible."""

LEAP_S = 0.1
"""A report further ahead of what was usual is believed, but moves the clock only together with the next one:
one that lies about its steps is found out later, and must leave no trace here."""

LARGEST_S = 1e9


class EngineClock:
    """Reads the engine's clock off its reports, against the moments of their arrival.

    Steps start in order, and none is reported before it has happened: the shortest way that any report took
    says what the two clocks differ by. A report that does not fit is impossible; when the next one fits to
    *it*, the clock has really been set, and counts from there.
    """

    def __init__(self) -> None:
        self._started_s = -math.inf
        self._offset_s = math.inf
        """Least difference between arrival and end of a step."""
        self._leapt: tuple[float, float] | None = None
        """The same two of the last report, if it was ahead of them."""
        self._odd_s: float | None = None
        """Start of the last impossible step."""

    def read(self, started_s: float, busy_s: float, now_s: float) -> Literal["fits", "stepped", "impossible"]:
        """What a step that started then and arrives now says; "stepped" where the clock begins anew."""
        if not (0.0 <= started_s <= LARGEST_S and 0.0 <= busy_s <= LARGEST_S):
            return "impossible"
        offset_s = now_s - (started_s + busy_s)
        if self._goes_on(started_s, offset_s, self._started_s, self._offset_s):
            return "fits"
        if self._leapt is not None and self._goes_on(started_s, offset_s, *self._leapt):
            return "fits"
        is_first = self._offset_s == math.inf
        if is_first or (started_s >= self._started_s and offset_s >= self._offset_s - AHEAD_S):
            self._leapt = started_s, offset_s
            return "fits"
        if self._odd_s is not None and abs(started_s - self._odd_s) <= AHEAD_S:
            self._started_s, self._offset_s, self._leapt, self._odd_s = started_s, offset_s, None, None
            return "stepped"
        self._odd_s = started_s
        return "impossible"

    def _goes_on(self, started_s: float, offset_s: float, after_s: float, least_s: float) -> bool:
        """Whether a step goes on from where the clock stood, and moves it if it does."""
        if least_s == math.inf or started_s < after_s - LEAP_S or offset_s < least_s - LEAP_S:
            return False
        self._started_s, self._offset_s = max(started_s, after_s), min(offset_s, least_s)
        self._leapt = self._odd_s = None
        return True
