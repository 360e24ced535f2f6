"""What the engine asks of whoever steers it, and the simplest answer."""

from collections.abc import Mapping
from typing import Protocol

from steersman_engine.rows import StepRows
from steersman_policies.executor import Decision, Load
from steersman_policies.messages import RequestReport
from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.segmenter import Segmenter


class Steering(Protocol):
    """Decides K, and is told what came of it. No method blocks or raises."""

    def decide(self, load: Load) -> Decision:
        """K by segment for the drafts made in this step."""
        ...

    def record(self, rows: StepRows) -> None:
        """A step is over."""
        ...

    def finished(self, report: RequestReport) -> None:
        """A request is over."""
        ...

    def segment_of(
        self, tag: str, attributes: Mapping[str, str], statistics: PromptStatistics | None = None
    ) -> str:
        """The segment of a request that is being admitted."""
        ...

    def close(self) -> None:
        """No more calls will come."""
        ...


class Launch:
    """Nobody steers: the launch setting, always."""

    def __init__(self, launch_k: int = 0) -> None:
        self.launch_k = launch_k

    def decide(self, load: Load) -> Decision:
        """The launch K for every segment."""
        return Decision(dict.fromkeys(load.decode_requests, self.launch_k), 0, "launch", False)

    def record(self, rows: StepRows) -> None:
        """Ignored."""

    def finished(self, report: RequestReport) -> None:
        """Ignored."""

    def segment_of(
        self, tag: str, attributes: Mapping[str, str], statistics: PromptStatistics | None = None
    ) -> str:
        """The tag, or unknown."""
        return Segmenter().segment_of(tag, attributes, statistics)

    def close(self) -> None:
        """Nothing to do."""
