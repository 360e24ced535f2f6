"""What the sidecar owes one engine: plans, leases, and patience."""

from msgspec import Struct

from steersman_policies.messages import PlanAck
from steersman_policies.plan import Plan

LEASE_INTERVAL_S = 0.1

SILENT_AFTER_S = 3.0
"""An engine says hello every second. One that was stopped must not find a queue of old leases."""

ACK_TIMEOUT_S = 1.0


class Peer(Struct):
    """The connection to an engine, in the sidecar's own seconds."""

    engine_id: str
    plan_due_s: float
    lease_due_s: float
    leased_s: float | None = None
    """When the last lease was handed to the network."""
    heard_s: float = 0.0
    fingerprint: str = ""
    """Of the controller that was last looked after at its start."""
    unanswered: Plan | None = None
    """The newest plan, until the engine says what it did with it."""
    sent_s: float = 0.0
    refused: PlanAck | None = None
    """The engine's last refusal, until it applies a plan again."""
    restart_wins: bool = False
    """Whether it was last said that a launch without any drafter would be the better one."""

    def is_silent(self, now_s: float) -> bool:
        """Whether nothing came for so long that nothing should be sent."""
        return now_s - self.heard_s > SILENT_AFTER_S

    def sent(self, plan: Plan, now_s: float) -> None:
        """Remember a plan that was handed to the network."""
        self.unanswered, self.sent_s = plan, now_s

    def owes_ack(self, now_s: float) -> bool:
        """Whether a plan went unanswered for so long that it should be sent again."""
        return self.unanswered is not None and now_s - self.sent_s >= ACK_TIMEOUT_S

    def answer(self, ack: PlanAck, now_s: float) -> None:
        """Take note of what the engine did with a plan; one that it applied gets its lease at once."""
        if self.unanswered is not None and ack.plan_id >= self.unanswered.plan_id:
            self.unanswered = None
        self.refused = None if ack.applied else ack
        if ack.applied:
            self.lease_due_s = now_s
