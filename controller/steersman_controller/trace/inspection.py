"""What a recording holds."""

from collections import Counter
from typing import Any

import msgspec
from msgspec import Struct

from steersman_controller.events import Event, Received, Ticked
from steersman_controller.trace.recording import Recording
from steersman_controller.trace.segment_facts import SegmentFacts, SegmentTally, facts_line
from steersman_policies.messages import RequestReport, StepReport


class _Tally(Struct):
    """Counts over one pass."""

    kinds: Counter[str]
    engines: Counter[str]
    requests: Counter[str]
    policies: Counter[str]
    segments: SegmentTally
    steps: int = 0
    committed_tokens: int = 0
    plans: int = 0
    end_s: float = 0.0


def summary(recording: Recording) -> dict[str, Any]:
    """Counts and names, in one pass over the events; units are in the keys."""
    tally = _Tally(Counter(), Counter(), Counter(), Counter(), SegmentTally())
    for event in recording.events:
        _count(tally, event)
    started = recording.started
    facts = tally.segments.facts()
    return {
        "path": str(recording.path),
        "version": started.version,
        "schema": started.schema,
        "seconds": round(tally.end_s - started.at_s, 6),
        "truncated_bytes": recording.truncated_bytes,
        "events": sum(tally.kinds.values()),
        "events_by_kind": dict(sorted(tally.kinds.items())),
        "frames_by_engine": dict(sorted(tally.engines.items())),
        "steps": tally.steps,
        "committed_tokens": tally.committed_tokens,
        "requests": sum(tally.requests.values()),
        "requests_by_segment": dict(sorted(tally.requests.items())),
        "mode": started.config.mode,
        "policy": started.policy,
        "plans": tally.plans,
        "plans_by_policy": dict(sorted(tally.policies.items())),
        "segments": msgspec.to_builtins(facts),
        "segments_alike": [list(pair) for pair in tally.segments.alike()],
        "segments_worth_splitting": [name for name, each in facts.items() if each.worth_splitting],
    }


def summary_lines(found: dict[str, Any]) -> list[str]:
    """The summary for people."""
    facts = msgspec.convert(found["segments"], dict[str, SegmentFacts])
    lines = [f"{key.replace('_', ' ')}: {_text(value)}" for key, value in found.items() if key != "segments"]
    return [*lines, *(f"segment {facts_line(name, each)}" for name, each in facts.items())]


def _count(tally: _Tally, event: Event) -> None:
    tally.end_s = max(tally.end_s, event.at_s)
    described = event.record if isinstance(event, Received) else event
    tally.kinds[str(described.__struct_config__.tag)] += 1
    if isinstance(event, Received):
        tally.engines[event.engine_id] += 1
        tally.segments.add(event)
        if isinstance(event.record, StepReport):
            tally.steps += 1
            tally.committed_tokens += event.record.committed_tokens
        elif isinstance(event.record, RequestReport):
            tally.requests[event.record.segment] += 1
    elif isinstance(event, Ticked) and event.plan is not None:
        tally.plans += 1
        tally.policies[event.plan.policy] += 1


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(" and ".join(each) if isinstance(each, list) else each for each in value) or "none"
    return str(value)
