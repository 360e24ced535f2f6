"""What can be told from two looks at an engine, a moment apart: one finding a line.

No I/O in here: a look goes in, findings come out.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from steersman_controller.look import Level, Look
from steersman_policies.messages import NO_SPECULATION

_MEANING: Mapping[str, tuple[Level, str]] = {
    "table": ("ok", "the plan's table"),
    "dwell": ("ok", "the plan's table, with a K that changed a moment ago kept"),
    "explore": ("ok", "the plan's table, with one segment trying another K"),
    "deficit": ("ok", "the plan's table for segments behind their SLO"),
    "shadow": ("note", "the launch setting; the plan is only logged"),
    "pause": ("note", "the launch setting, because of a pause file"),
    "launch": ("note", "the launch setting: no leased plan, no fallback table"),
    "lease": ("problem", "the fallback table: the lease has run out"),
    "guard": ("problem", "the floor: nothing was committed for many steps"),
    "error": ("problem", "the launch setting: looking K up has failed"),
}


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    engine_id: str
    """Empty: about the sidecar."""
    check: str
    status: Level
    text: str
    advice: str = ""
    """What to do about it."""


def engine_findings(look: Look) -> Iterator[Finding]:
    """Everything about one engine. Of one that has fallen silent only what does not depend on it."""
    yield _attached(look)
    yield _combination(look)
    if not look.is_silent:
        yield _telemetry(look)
        yield _rows(look)
        yield _errors(look)
        yield _lengths(look)
        yield _decision(look)
        yield _plan(look)
        yield _segments(look)
        yield from _restart(look)
    yield _lease(look)
    yield _mode(look)
    yield from _pause_file(look)
    yield _fallback(look)
    yield _policy(look)
    yield from _prior(look)


def span(seconds: float) -> str:
    """A length of time, as people say it.

    >>> span(0.31), span(42.0), span(300.0), span(9000.0)
    ('0.3 s', '42 s', '5 min', '2.5 h')
    """
    if seconds < 120.0:
        return f"{seconds:.1f} s" if seconds < 10.0 else f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def listed(counts: Mapping[str, int]) -> str:
    """Names with their numbers.

    >>> listed({"chat": 3, "batch": 0})
    'batch 0, chat 3'
    """
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _found(look: Look, check: str, level: Level, text: str, advice: str = "") -> Finding:
    return Finding(look.engine.engine_id, check, level, text, advice)


def _attached(look: Look) -> Finding:
    engine = look.engine
    text = f"for {span(engine.attached_s)}, last heard {span(engine.silent_s)} ago"
    if not look.is_silent:
        return _found(look, "attached", "ok", f"{text}; target {engine.about.target}")
    advice = f"see whether vLLM still runs and reaches {look.sidecar.telemetry}; it says hello every second"
    return _found(look, "attached", "problem", f"silent: {text}", advice)


def _combination(look: Look) -> Finding:
    about = look.engine.about
    *runner, verdict = (word.strip() for word in about.runner.split(","))
    if verdict not in ("tested", "untested"):  # an engine that does not say
        runner, verdict = [*runner, verdict], "unknown whether tested"
    how = " ".join(word for word in runner if word) or "unknown runner"
    text = f"vLLM {about.engine_version} x {how} x {about.method}: "
    if not about.observe_only:
        if verdict == "tested":
            return _found(look, "version", "ok", text + verdict)
        return _found(look, "version", "note", text + verdict, "watch it in shadow first")
    text += f"observe-only ({about.observe_only})"
    if about.observe_only == NO_SPECULATION:
        return _found(look, "version", "note", text, "launch with --speculative-config to speculate at all")
    advice = "look for 'Steersman' in vLLM's log: it says why, and which line to change"
    return _found(look, "version", "problem", text, advice)


def _telemetry(look: Look) -> Finding:
    engine, before, rate = look.engine, look.before, look.reports_per_s
    dropped = engine.about.counters.get("dropped", 0)
    speed = "speed unknown yet" if rate is None else f"{rate:.1f} reports/s"
    text = f"{speed}, {engine.reports} so far; frames lost {engine.frames_lost}, dropped {dropped}"
    lost = 0 if before is None else max(0, engine.frames_lost - before.frames_lost)
    if lost or look.grown("dropped"):
        text += f" ({lost} and {look.grown('dropped')} of them just now)"
        return _found(look, "telemetry", "problem", text, "give engine and sidecar more CPU time")
    if not look.reports:
        advice = "an idle engine takes no steps: send it a request and look again"
        return _found(look, "telemetry", "note", text, advice)
    return _found(look, "telemetry", "note" if engine.frames_lost or dropped else "ok", text)


def _rows(look: Look) -> Finding:
    prefix = "refused."
    counters = look.engine.about.counters
    refused = {name.removeprefix(prefix): n for name, n in counters.items() if name.startswith(prefix) and n}
    if not refused:
        return _found(look, "rows", "ok", "none refused")
    text = f"refused before they count: {listed(refused)}"
    if any(look.grown(prefix + reason) for reason in refused if reason != "segment"):
        advice = "what this engine says contradicts itself: pause it, and report the reasons"
        return _found(look, "rows", "problem", text, advice)
    advice = (
        "an engine keeps the first 16 segment names that it sees: use fewer tags"
        if "segment" in refused
        else ""
    )
    return _found(look, "rows", "note", text, advice)


def _errors(look: Look) -> Finding:
    counters = look.engine.about.counters
    grave = {name: counters.get(name, 0) for name in ("hook_errors", "decisions_after_expiry")}
    words = {"publisher_errors", "fallback_refused", *(name for name in counters if name.startswith("wire."))}
    light = {name: counters[name] for name in words if counters.get(name)}
    text = listed({**grave, **light})
    if any(grave.values()):
        return _found(look, "errors", "problem", text, "look for 'link:' and 'Steersman' in vLLM's log")
    return _found(look, "errors", "note" if light else "ok", text)


def _mode(look: Look) -> Finding:
    engine = look.engine
    if engine.about.observe_only:
        return _found(look, "mode", "note", f"observe-only; the sidecar is in {look.sidecar.mode}")
    if engine.mode == "steer":
        return _found(look, "mode", "ok", "steer: plans act")
    if look.sidecar.mode == "steer":
        advice = f"`steersman resume {engine.engine_id}` puts it back"
        return _found(look, "mode", "note", "paused by the operator: plans are only logged", advice)
    advice = "start the sidecar with --steer to act"
    return _found(look, "mode", "note", "shadow: plans are only logged", advice)


def _pause_file(look: Look) -> Iterator[Finding]:
    files = look.files
    if files.pause:
        text = f"{files.pause_file} puts the launch setting back"
        yield _found(look, "pause file", "note", text, "remove it to go on")
    elif look.engine.reason == "pause" and look.reports:
        advice = "name the engine's folder with --state-dir"
        yield _found(look, "pause file", "note", f"there is one, not in {files.folder}", advice)


def _lengths(look: Look) -> Finding:
    engine = look.engine
    if not engine.proposal_length:
        about = engine.about
        text = f"no step yet; launch K {about.launch_k}, K_max {about.k_max}"
        return _found(look, "K", "note", text)
    text = f"in force: {listed(engine.proposal_length)}"
    if engine.would_be:
        text += f"; the plan would have: {listed(engine.would_be)}"
    return _found(look, "K", "ok", text)


def _decision(look: Look) -> Finding:
    reason = look.engine.reason
    if not reason:
        return _found(look, "decision", "note", "no step yet")
    level, meaning = _MEANING.get(reason, ("note", "a reason that this version does not know"))
    text = f"{reason}: {meaning}"
    if not look.reports:
        return _found(look, "decision", "ok" if level == "ok" else "note", f"{text} (no step since)")
    if reason == "launch" and look.steers:
        level = look.overdue
    advice = {
        "launch": "see plan and lease below",
        "lease": "see lease below; a sidecar short of CPU time sends leases late",
        "guard": "see whether vLLM makes progress; drafting comes back by itself",
        "error": "look for 'link:' in vLLM's log",
    }
    return _found(look, "decision", level, text, advice.get(reason, "") if level == "problem" else "")


def _plan(look: Look) -> Finding:
    engine = look.engine
    if engine.plan_id is None:
        advice = "push one that can plan for this engine: `steersman policy push`"
        return _found(look, "plan", look.overdue, f"policy {engine.policy} has made none", advice)
    in_force = "none" if engine.acked_plan_id is None else str(engine.acked_plan_id)
    text = f"in force {in_force}, newest {engine.plan_id}"
    if engine.refused_plan_id is not None:
        text += f"; the engine refused {engine.refused_plan_id}: {engine.refusal}"
        return _found(look, "plan", "problem", text, "push another policy; the last good plan stays")
    if engine.acked_plan_id == engine.plan_id:
        return _found(look, "plan", "ok", text)
    before = look.before
    waited = before is not None and before.plan_id != before.acked_plan_id == engine.acked_plan_id
    if not waited:
        return _found(look, "plan", "note", f"{text}: on its way")
    return _found(look, "plan", look.overdue, f"{text}: not answered", "look for 'link' in vLLM's log")


def _lease(look: Look) -> Finding:
    engine = look.engine
    age_s, lease_s = engine.lease_age_s, engine.lease_s
    if age_s is None or engine.acked_plan_id is None:
        text = "none: leases begin when the engine has acknowledged a plan"
        return _found(look, "lease", look.overdue, text, "see plan above")
    text = f"last sent {span(age_s)} ago, holds for {lease_s:g} s"
    if look.is_silent:
        return _found(look, "lease", "note", f"{text}; none are sent to a silent engine")
    if age_s <= lease_s:
        return _found(look, "lease", "ok", text)
    advice = "its connection takes nothing: see whether vLLM still runs, else restart the sidecar"
    return _found(look, "lease", "problem", text, advice)


def _fallback(look: Look) -> Finding:
    files = look.files
    where = "name the engine's folder with --state-dir"
    if not files.is_there:
        return _found(look, "fallback", "note", f"unknown: no folder {files.folder}", where)
    if files.fallback == "present":
        return _found(look, "fallback", "ok", f"table on disk: {files.fallback_file}")
    if files.fallback == "unreadable":
        text = f"{files.fallback_file} cannot be read as a table"
        return _found(look, "fallback", "problem", text, "delete it; the engine writes it anew")
    if files.fallback == "of another engine":
        text = f"{files.fallback_file} was made for another launch and is not used"
        return _found(look, "fallback", "note", text)
    text = f"no table in {files.folder}: without a lease a restarted engine has its launch setting"
    return _found(look, "fallback", "note", text, where if look.steers else "")


def _policy(look: Look) -> Finding:
    policy, version = look.engine.policy, look.engine.policy_version
    return _found(look, "policy", "ok", f"{policy}, version {version}")


def _prior(look: Look) -> Iterator[Finding]:
    if look.engine.prior:
        level: Level = "note" if ": not used: " in look.engine.prior else "ok"
        yield _found(look, "prior", level, look.engine.prior)


def _restart(look: Look) -> Iterator[Finding]:
    """Nothing, where nobody measured an engine without a drafter."""
    restart = look.engine.restart
    if restart is not None and restart.wins:
        advice = "launch without --speculative-config, as long as the load stays like this"
        yield _found(look, "drafter", "note", restart.text, advice)
    elif restart is not None:
        yield _found(look, "drafter", "ok", restart.text)


def _segments(look: Look) -> Finding:
    shares = sorted(look.engine.segments.items(), key=lambda item: (-item[1], item[0]))
    if not shares:
        return _found(look, "segments", "note", "none seen yet")
    return _found(look, "segments", "ok", ", ".join(f"{name} {share:.0%}" for name, share in shares))
