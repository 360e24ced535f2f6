"""What operators read, as lines of text."""

from collections.abc import Iterator

from steersman_controller.doctor import Examination
from steersman_controller.findings import Finding, listed
from steersman_controller.sidecar.admin import EngineStatus, Status
from steersman_controller.sidecar.push import Outcome

MOST_PAIRS = 4
"""Shown to people of segments that could be one."""

_REASONS = {
    "pause": "a pause, by its file or by an operator",
    "lease": "its fallback table, since no lease held",
    "launch": "its launch setting, since it has no plan",
    "shadow": "its launch setting, since the plan is only watched",
    "table": "the plan",
    "dwell": "the plan, held for a while after a change",
    "explore": "the plan, which tries another K now and then",
}

_WORDS = {"ack": "ACK", "nack": "NACK", "timeout": "no answer"}


def status_lines(status: Status) -> list[str]:
    """A sidecar and its engines."""
    refused = listed(status.refused_frames)
    lines = [
        f"sidecar {status.version}, process {status.pid}, {status.mode}, policy {status.policy}, "
        f"{status.telemetry}",
        *(["recording to " + status.recording] if status.recording else []),
        *(["frames refused: " + refused] if refused else []),
        *([] if status.engines else ["no engine has connected"]),
        *(line for engine in status.engines for line in _engine_lines(engine)),
    ]
    return [_printable(line) for line in lines]


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


def examination_lines(examination: Examination) -> list[str]:
    """What was found, engine by engine."""
    problems = sum(finding.status == "problem" for finding in examination.findings)
    lines: list[str] = []
    engine_id = ""
    for finding in examination.findings:
        if finding.engine_id != engine_id:
            engine_id = finding.engine_id
            lines.append(f"engine {engine_id}")
        lines += map(_printable, _finding_lines(finding))
    return [*lines, f"{problems} problem{'s' if problems > 1 else ''}" if problems else "no problem"]


def _segment_lines(engine: EngineStatus) -> Iterator[str]:
    """Segments that finished requests say should be fewer, or more."""
    if engine.alike:
        pairs = [" = ".join(pair) for pair in engine.alike[:MOST_PAIRS]]
        more = len(engine.alike) - len(pairs)
        yield "  segments that could be one: " + ", ".join(pairs) + (f" and {more} more" if more else "")
    mixed = [
        name
        for name, found in engine.variation.items()
        if found.between_requests is not None and found.between_requests.worth_splitting
    ]
    if mixed:
        yield "  segments of more than one kind of request: " + ", ".join(mixed)


def _printable(line: str) -> str:
    """A line in which an engine's own words can do nothing to a terminal."""
    return "".join(char if char.isprintable() else "?" for char in line)


def _finding_lines(finding: Finding) -> list[str]:
    indent = "  " if finding.engine_id else ""
    head = f"{indent}{finding.status:<8} {finding.check:<10} "
    advice = [" " * len(head) + "-> " + finding.advice] if finding.advice else []
    return [head + finding.text, *advice]


def _engine_lines(engine: EngineStatus) -> Iterator[str]:
    plan = "none yet" if engine.plan_id is None else str(engine.plan_id)
    acked = "none" if engine.acked_plan_id is None else str(engine.acked_plan_id)
    yield (
        f"engine {engine.engine_id}: {engine.mode}, policy {engine.policy} {engine.policy_version}, "
        f"plan {plan}, in force {acked}, last heard {engine.silent_s:.1f} s ago"
    )
    if engine.about.observe_only:
        yield f"  observe-only, follows no plan: {engine.about.observe_only}"
    if engine.refusal:
        yield f"  refused plan {engine.refused_plan_id}: {engine.refusal}"
    if engine.reason:
        age_s = engine.lease_age_s
        leased = "none" if age_s is None else f"{age_s:.1f} s old, holds {engine.lease_s:g} s"
        yield f"  lease {leased}; the last step's K came from: {_REASONS.get(engine.reason, engine.reason)}"
    if engine.proposal_length:
        yield f"  K in force: {listed(engine.proposal_length)}"
    if engine.would_be:
        yield f"  K that the plan would ask for: {listed(engine.would_be)}"
    yield from _segment_lines(engine)
    if engine.prior:
        yield f"  prior: {engine.prior}"
    if engine.restart is not None:
        wins = "a restart without speculation would win: " if engine.restart.wins else ""
        yield f"  {wins}{engine.restart.text}"
    yield (f"  frames {engine.frames}, lost {engine.frames_lost}, duplicate or old {engine.frames_duplicate}")
