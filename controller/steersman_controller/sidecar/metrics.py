"""What Prometheus sees: base units, closed label sets, a registry of its own, and never a NaN.

Engines are bounded by the telemetry socket, segments and positions by the data contracts, and words
that an engine chooses freely are mapped to a closed list. A NaN in a histogram's sum would stay for
the life of the process, so numbers are checked before they get here.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.metrics import MetricWrapperBase

from steersman_controller.belief.signal_rows import SIGNALS
from steersman_controller.belief.tally import Tally
from steersman_controller.sidecar.histograms import StepHistograms
from steersman_controller.status import Variation
from steersman_policies.messages import RequestReport, StepReport
from steersman_policies.plan import Plan
from steersman_policies.units import MAX_SEGMENTS
from steersman_policies.view import SegmentBelief, SignalBelief

M = TypeVar("M", bound=MetricWrapperBase)

PREFIX = "steersman"
MAX_POSITIONS = 16
"""Position acceptance is shown for the first ones; the counters have them all."""

WAIT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TPOT_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

_COUNTERS: Final = {
    "frames": ("Valid frames from the engine, by kind of record.", ["engine", "kind"]),
    "frames_lost": ("Frames that never arrived: gaps in the sequence.", ["engine"]),
    "frames_duplicate": (
        "Frames that came again, from an older boot, or far from their place.",
        ["engine"],
    ),
    "engine_dropped": ("Records the engine had to drop before sending.", ["engine"]),
    "sends_dropped": ("Plans and leases that could not be handed to the network.", ["engine"]),
    "wire_errors": ("Frames refused, by reason.", ["reason"]),
    "steps": ("Steps of the engine, by why its executor chose this K.", ["engine", "reason"]),
    "steps_by_depth": ("Steps by the longest proposal asked of the drafter.", ["engine", "k"]),
    "drafts": ("Proposals verified.", ["engine"]),
    "draft_tokens": ("Draft tokens verified.", ["engine"]),
    "accepted_tokens": ("Draft tokens accepted, without the bonus token.", ["engine"]),
    "committed_tokens": ("Tokens committed, bonus tokens included.", ["engine"]),
    "reached_tokens_per_position": ("Verifications that reached a position.", ["engine", "position"]),
    "accepted_tokens_per_position": ("Draft tokens accepted at a position.", ["engine", "position"]),
    "plan_acks": ("Answers to plans: applied or refused.", ["engine", "result"]),
    "requests": ("Finished requests.", ["engine"]),
    "reports_refused": ("Step reports that contradict themselves or the clock.", ["engine"]),
    "drifts": ("Changes noticed: of acceptance, coverage or cost, or slow decay.", ["engine", "kind"]),
    "snapshots_refused": ("Snapshots that were corrupt or belonged elsewhere.", []),
    "plan_errors": ("Plans that a policy failed to make.", ["engine"]),
}
_GAUGES: Final = {
    "proposal_length": ("K in force.", ["engine", "segment"]),
    "would_be_proposal_length": ("K that the plan would ask for; shadow mode only.", ["engine", "segment"]),
    "position_acceptance_ratio": (
        "Belief: accepted / reached at a position.",
        ["engine", "segment", "position"],
    ),
    "position_acceptance_low_ratio": (
        "Belief: lower bound of the 90 % interval of the above.",
        ["engine", "segment", "position"],
    ),
    "acceptance_autocorrelation": (
        "Lag-1 autocorrelation of the residuals of acceptance, step by step.",
        ["engine", "segment"],
    ),
    "acceptance_dispersion_ratio": (
        "Variance of those residuals over that of independent drafts: above 1 where requests differ.",
        ["engine", "segment"],
    ),
    "request_acceptance_deviation_ratio": (
        "Standard deviation of accepted / reached between requests, beyond chance.",
        ["engine", "segment"],
    ),
    "signal_gain_nats": (
        "By how much a position is predicted better with a signal; absent where it does not pay.",
        ["engine", "segment", "signal"],
    ),
    "invalid_state_ratio": (
        "Share of requests that the drafter has no valid state for.",
        ["engine", "segment"],
    ),
    "outlier": (
        "1 while an engine is clearly worse than its peers in this, and planned alone.",
        ["engine", "kind"],
    ),
    "coverage_ratio": ("Belief: share of requests in which the drafter has a draft.", ["engine", "segment"]),
    "policy_info": ("The policy of the newest plan.", ["engine", "policy", "policy_version"]),
    "plan_id": ("The newest plan.", ["engine"]),
    "leased_plan_id": ("The plan that leases are given for; absent while there is none.", ["engine"]),
    "steering": ("1 while plans act, 0 in shadow mode and where the engine only observes.", ["engine"]),
    "engine_observe_only": ("1 where the engine reports but follows no plan, 0 where it does.", ["engine"]),
    "silent_seconds": ("Since the last frame.", ["engine"]),
    "last_frame_timestamp_seconds": ("Unix time of the last frame.", ["engine"]),
    "decode_requests": ("Live decode requests in the last step.", ["engine"]),
    "waiting_requests": ("Requests waiting in the last step.", ["engine"]),
    "kv_used_ratio": ("KV memory used in the last step.", ["engine"]),
    "restart_without_drafter_gain_ratio": (
        "Tokens per second of a launch without any drafter, as a prior has it, over the best here, less 1.",
        ["engine"],
    ),
    "restart_without_drafter_wins": (
        "1 while that gain is larger than what is uncertain about both.",
        ["engine"],
    ),
    "recording_failed": ("1 after the recording ended early.", []),
    "build_info": ("Always 1.", ["version"]),
}
_HISTOGRAMS_OF_STEPS: Final = {
    "step_seconds": "Seconds of a step, by phase.",
    "prediction_error_ratio": "|predicted - actual| / actual seconds of a step, by phase.",
}
_HISTOGRAMS: Final = {
    "request_ttft_seconds": ("Arrival to first token.", ["engine"], WAIT_BUCKETS_S),
    "request_tpot_seconds": ("Seconds per output token after the first.", ["engine"], TPOT_BUCKETS_S),
    "request_e2e_seconds": ("Arrival to last token.", ["engine"], WAIT_BUCKETS_S),
}


class _Family(Generic[M]):
    """Metrics of one type by name. Looking a label set up is dear, so each is looked up once."""

    def __init__(self, metrics: dict[str, M]) -> None:
        self._metrics = metrics
        self._children: dict[tuple[str, ...], M] = {}

    def child(self, name: str, labels: tuple[str, ...]) -> M:
        """The series with these labels; it begins with its first value."""
        key = (name, *labels)
        child = self._children.get(key)
        if child is None:
            metric = self._metrics[name]
            child = self._children[key] = metric.labels(*labels) if labels else metric
        return child

    def remove(self, name: str, labels: tuple[str, ...]) -> None:
        """End a series."""
        self._metrics[name].remove(*labels)
        self._children.pop((name, *labels), None)


class Metrics:
    """All metrics of one sidecar, on one registry of its own."""

    def __init__(self, version: str, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self.registry = CollectorRegistry()
        self._counters = _Family(
            {
                name: Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)
                for name, (text, labels) in _COUNTERS.items()
            }
        )
        self._gauges = _Family(
            {
                name: Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)
                for name, (text, labels) in _GAUGES.items()
            }
        )
        self._histograms = _Family(
            {
                name: Histogram(f"{PREFIX}_{name}", text, labels, registry=self.registry, buckets=buckets)
                for name, (text, labels, buckets) in _HISTOGRAMS.items()
            }
        )
        ProcessCollector(namespace=PREFIX, registry=self.registry)
        self._histograms_of_steps = StepHistograms(
            {f"{PREFIX}_{name}": text for name, text in _HISTOGRAMS_OF_STEPS.items()}, PREFIX
        )
        self.registry.register(self._histograms_of_steps)
        self._totals: dict[tuple[str, ...], float] = {}
        self._policies: dict[str, tuple[str, str, str]] = {}
        self._segments: dict[str, set[str]] = {}
        self._paying: set[tuple[str, ...]] = set()
        """Engine, segment and signal."""
        self.set("build_info", 1.0, version)

    def serve(self, port: int) -> str:
        """Answer scrapes on 127.0.0.1 in a thread; the URL. Raises ValueError where the port is taken."""
        try:
            start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise ValueError(
                f"--metrics-port: cannot listen on 127.0.0.1:{port}: {error.strerror}; "
                "choose another port, or 0 for no metrics"
            ) from None
        return f"http://127.0.0.1:{port}/metrics"

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge; a number that is not finite leaves it as it was."""
        if math.isfinite(value):
            self._gauges.child(name, labels).set(value)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Raise a counter; an amount that is not finite or negative is left out."""
        if math.isfinite(amount) and amount >= 0.0:
            self._counters.child(name, labels).inc(amount)

    def reach(self, name: str, total: float, *labels: str) -> None:
        """Raise a counter to a total that is counted elsewhere, and may start anew there."""
        if not (math.isfinite(total) and total >= 0.0):
            return
        key = (name, *labels)
        last = self._totals.get(key, 0.0)
        self.add(name, total - last if total >= last else total, *labels)
        self._totals[key] = total

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Put a value into a histogram, unless it is not finite or negative."""
        if math.isfinite(value) and value >= 0.0:
            self._histograms.child(name, labels).observe(value)

    def steps(self, engine: str, tally: Tally, last: StepReport | None) -> None:
        """Show what an engine's steps add up to, and its newest one."""
        for reason, number in tally.reasons.items():
            self.reach("steps", number, engine, reason)
        for depth, number in tally.depths.items():
            self.reach("steps_by_depth", number, engine, str(depth))
        for name, number in (
            ("committed_tokens", tally.committed_tokens),
            ("drafts", tally.drafts),
            ("draft_tokens", tally.draft_tokens),
            ("accepted_tokens", tally.accepted_tokens),
        ):
            self.reach(name, number, engine)
        for name, by_position in (
            ("reached_tokens_per_position", tally.reached),
            ("accepted_tokens_per_position", tally.accepted),
        ):
            for position, number in enumerate(by_position.tolist(), start=1):
                if number:
                    self.reach(name, number, engine, str(position))
        self._histograms_of_steps.show("step_seconds", engine, tally.step_seconds)
        self._histograms_of_steps.show("prediction_error_ratio", engine, tally.prediction_errors)
        if last is not None:
            self.set("decode_requests", last.decode_requests, engine)
            self.set("waiting_requests", last.waiting, engine)
            self.set("kv_used_ratio", last.kv_used_fraction, engine)
            self.commanded(engine, "proposal_length", last.commanded)
            self.commanded(engine, "would_be_proposal_length", last.would_be)

    def request(self, engine: str, report: RequestReport) -> None:
        """Count one finished request. TPOT says nothing about a single token."""
        self.add("requests", 1.0, engine)
        self.observe("request_ttft_seconds", report.ttft_s, engine)
        self.observe("request_e2e_seconds", report.e2e_s, engine)
        if report.output_tokens > 1:
            self.observe("request_tpot_seconds", report.tpot_s, engine)

    def heard(self, engine: str, frames: Mapping[str, int], silent_s: float) -> None:
        """Show how many frames of each kind came, and when the last one did."""
        for kind, number in frames.items():
            self.reach("frames", number, engine, kind)
        self.set("last_frame_timestamp_seconds", self._unix_time() - silent_s, engine)

    def plan(self, engine: str, plan: Plan) -> None:
        """Show a new plan."""
        self.set("plan_id", plan.plan_id, engine)
        labels = (engine, plan.policy, plan.policy_version)
        known = self._policies.get(engine)
        if known is not None and known != labels:
            self._gauges.remove("policy_info", known)
        self._policies[engine] = labels
        self.set("policy_info", 1.0, *labels)

    def commanded(self, engine: str, gauge: str, by_segment: Mapping[str, int]) -> None:
        """Show K by segment in `proposal_length` or `would_be_proposal_length`."""
        for segment, k in by_segment.items():
            self.set(gauge, k, engine, self._segment(engine, segment))

    def beliefs(
        self, engine: str, beliefs: Iterable[SegmentBelief], variation: Mapping[str, Variation]
    ) -> None:
        """Show what is believed about each segment that there is evidence for, and how its drafts vary."""
        for belief in beliefs:
            if belief.weight <= 0.0:
                continue
            segment = self._segment(engine, belief.segment)
            self.set("coverage_ratio", belief.coverage, engine, segment)
            self.set("invalid_state_ratio", belief.invalid_state_share, engine, segment)
            for name, by_position in (
                ("position_acceptance_ratio", belief.acceptance),
                ("position_acceptance_low_ratio", belief.acceptance_low),
            ):
                for position, accepted in enumerate(by_position[:MAX_POSITIONS], start=1):
                    self.set(name, accepted, engine, segment, str(position))
            for signal in SIGNALS:
                self._gain(belief.by_signal.get(signal), engine, segment, signal)
            found = variation.get(belief.segment, Variation())
            if found.autocorrelation is not None and found.dispersion is not None:
                self.set("acceptance_autocorrelation", found.autocorrelation, engine, segment)
                self.set("acceptance_dispersion_ratio", found.dispersion, engine, segment)
            if found.between_requests is not None:
                deviation = found.between_requests.between_sd
                self.set("request_acceptance_deviation_ratio", deviation, engine, segment)

    def _gain(self, found: SignalBelief | None, *labels: str) -> None:
        if found is not None:
            self._paying.add(labels)
            self.set("signal_gain_nats", found.gain_nats, *labels)
        elif labels in self._paying:
            self._paying.discard(labels)
            self._gauges.remove("signal_gain_nats", labels)

    def _segment(self, engine: str, segment: str) -> str:
        """The label of a segment: an engine that names more than it may adds no series."""
        known = self._segments.setdefault(engine, set())
        if segment not in known and len(known) >= MAX_SEGMENTS:
            return "other"
        known.add(segment)
        return segment
