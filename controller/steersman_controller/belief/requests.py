"""What finished requests teach about how those of one segment differ, by segment."""

from steersman_controller.request_spread import RequestSpread, is_decided
from steersman_policies.messages import RequestReport
from steersman_policies.units import MAX_SEGMENTS

KEEP = 0.99
"""Kept of the sums of a segment when another of its requests is over."""


class Requests:
    """Learns from reports of finished requests."""

    def __init__(self) -> None:
        self.spreads: dict[str, RequestSpread] = {}
        """By segment, the one heard of last at the end; at most `MAX_SEGMENTS`."""

    def learn(self, report: RequestReport) -> bool:
        """Count a request; False for a report that cannot be true. One whose engine does not tell how many of
        its draft tokens were decided teaches nothing."""
        if not (report.accepted <= report.drafted <= 2**53 and (is_decided(report) or not report.reached)):
            return False
        # The one unheard of for longest makes room.
        spread = self.spreads.pop(report.segment, None) or RequestSpread()
        spread.add(report.accepted, report.reached, report.steps_drafted, KEEP)
        self.spreads[report.segment] = spread
        while len(self.spreads) > MAX_SEGMENTS:
            del self.spreads[next(iter(self.spreads))]
        return True
