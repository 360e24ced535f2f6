"""Never draft: the baseline that everything is measured against."""

from typing import ClassVar

from msgspec import Struct

from steersman_policies.plan import Plan
from steersman_policies.policy import Memory
from steersman_policies.tables import constant_plan
from steersman_policies.view import View


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""

    version: ClassVar[str] = "1"

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """K = 0 everywhere (the smallest reachable K where an engine cannot switch off)."""
        return constant_plan(view, 0, policy="off", version=self.version), memory
