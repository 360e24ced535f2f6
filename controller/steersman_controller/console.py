"""What operators read, as lines of text."""

from collections.abc import Iterator, Mapping

from steersman_controller.sidecar.admin import EngineStatus, Status
from steersman_controller.sidecar.push import Outcome

_WORDS = {"ack": "ACK", "nack": "NACK", "timeout": "no answer"}


def status_lines(status: Status) -> list[str]:
    """A sidecar and its engines."""
    refused = ", ".join(f"{reason} {count}" for reason, count in sorted(status.refused_frames.items()))
    return [
        f"sidecar {status.version}, process {status.pid}, {status.mode}, policy {status.policy}, "
        f"{status.telemetry}",
        *(["recording to " + status.recording] if status.recording else []),
        *(["frames refused: " + refused] if refused else []),
        *([] if status.engines else ["no engine has connected"]),
        *(line for engine in status.engines for line in _engine_lines(engine)),
    ]


def outcome_lines(outcome: Outcome) -> list[str]:
    """What each engine did with a change."""
    mode = f" ({outcome.mode})" if outcome.mode else ""
    if not outcome.engines:
        return [f"accepted{mode}; no engine is heard from now; those that come will follow it"]
    return [
        f"engine {engine_id}: {_WORDS[answer.result]}, plan {answer.plan_id}{mode}"
        + (f": {answer.reason}" if answer.reason else "")
        for engine_id, answer in outcome.engines.items()
    ]


def _engine_lines(engine: EngineStatus) -> Iterator[str]:
    plan = "none yet" if engine.plan_id is None else str(engine.plan_id)
    acked = "none" if engine.acked_plan_id is None else str(engine.acked_plan_id)
    yield (
        f"engine {engine.engine_id}: {engine.mode}, policy {engine.policy} {engine.policy_version}, "
        f"plan {plan}, in force {acked}, last heard {engine.silent_s:.1f} s ago"
    )
    if engine.refusal:
        yield f"  refused plan {engine.refused_plan_id}: {engine.refusal}"
    if engine.proposal_length:
        yield f"  K in force: {_by_segment(engine.proposal_length)}"
    if engine.would_be:
        yield f"  K that the plan would ask for: {_by_segment(engine.would_be)}"
    yield (f"  frames {engine.frames}, lost {engine.frames_lost}, duplicate or old {engine.frames_duplicate}")


def _by_segment(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{segment} {k}" for segment, k in sorted(lengths.items()))
