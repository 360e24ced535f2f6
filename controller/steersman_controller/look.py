"""Two looks at an engine, a moment apart: what it is now, and what moves."""

from typing import Literal, TypeAlias

from msgspec import Struct

from steersman_controller.sidecar.admin import EngineStatus, Status
from steersman_controller.sidecar.peer import SILENT_AFTER_S
from steersman_controller.state_dir import StateFiles

SETTLING_S = 3.0
"""An engine that has just attached may not have its first plan yet."""

Level: TypeAlias = Literal["ok", "note", "problem"]


class Look(Struct, frozen=True):
    """An engine now, and a moment before where it was there already."""

    engine: EngineStatus
    before: EngineStatus | None
    seconds: float
    sidecar: Status
    files: StateFiles

    @property
    def reports(self) -> int:
        """Step reports that came during the look."""
        return 0 if self.before is None else max(0, self.engine.reports - self.before.reports)

    @property
    def reports_per_s(self) -> float | None:
        """None where there was no moment before."""
        return None if self.before is None else self.reports / self.seconds

    @property
    def overdue(self) -> Level:
        """How bad it is that something has not come yet."""
        return "note" if self.engine.attached_s <= SETTLING_S else "problem"

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for so long that nothing is sent, either."""
        return self.engine.silent_s > SILENT_AFTER_S

    @property
    def steers(self) -> bool:
        """Whether plans are meant to act on this engine."""
        return self.engine.mode == "steer" and not self.engine.about.observe_only

    def grown(self, counter: str) -> int:
        """What one of the engine's own counters gained during the look."""
        if self.before is None:
            return 0
        before = self.before.about.counters.get(counter, 0)
        return max(0, self.engine.about.counters.get(counter, 0) - before)
