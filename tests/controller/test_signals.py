"""What is known of a request before its draft is verified: shown where it pays, calibrated, and used against
the bias of trims."""

import msgspec
import numpy as np
import pytest
import signal_traffic as made
import traffic

from steersman_controller.belief.belief import Belief
from steersman_controller.belief.signals import Signals
from steersman_policies import codec
from steersman_policies.messages import Group, Signal, SignalCounts, StepReport
from steersman_policies.signals import CONFIDENCE_EDGES
from steersman_policies.view import SegmentBelief

Requests, K = made.Requests, made.K
EVERYTHING = np.ones((16, K), bool)


def believed(belief: Belief) -> SegmentBelief:
    return next(found for found in belief.segments() if found.segment == "code")


def learned(requests: "Requests", steps: int, *signals: Signal) -> Belief:  # type: ignore[valid-type]
    belief = Belief(traffic.HELLO)
    for step in range(steps):
        said, accepted = requests.drafts()
        group = requests.verify("code", said, accepted, EVERYTHING, *signals)
        belief.observe(traffic.report(step, [group]))
    return belief


def test_the_state_pays_where_requests_differ() -> None:
    """Requests that stay easy or hard are told apart by how their last drafts went."""
    belief = learned(Requests(1, spread=1.5, lives=60.0), 3000, "state")
    state = believed(belief).by_signal["state"]
    assert state.gain_nats > 0.02
    assert state.gain_nats > 3.0 * state.gain_error_nats
    assert state.survival[9][0] > state.survival[1][0] + 0.2
    assert sum(state.share) == pytest.approx(1.0)


def many_alike(steps: int) -> Belief:
    """Six segments of four requests each, which differ in nothing."""
    members = {f"s{index}": Requests(index, number=4, noise="two kinds") for index in range(6)}
    belief, everything = Belief(traffic.HELLO), np.ones((4, K), bool)
    for step in range(steps):
        groups = [
            requests.verify(name, *requests.drafts(), everything, "state")
            for name, requests in members.items()
        ]
        belief.observe(traffic.report(step, groups))
    return belief


def shown(belief: Belief) -> int:
    """In how many segments a signal is said to pay."""
    return sum(bool(found.by_signal) for found in belief.segments())


def test_the_state_is_not_shown_where_requests_are_alike() -> None:
    """Of six segments whose requests differ in nothing none takes its own noise for knowledge."""
    belief = many_alike(3000)
    rows = [belief.load.rows[f"s{index}"] for index in range(6)]
    number, *_ = belief.acceptance.signals.state.batches
    assert (number[0, rows] > 9.2).all()
    assert (belief.acceptance.signals.gains()[0][0, rows] < 0.0).sum() >= 5
    assert shown(belief) == 0


def test_a_gain_that_is_scored_after_learning_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicting drafts that one has already learned from looks like knowledge where there is none."""
    learn = Signals.learn

    def peeking(self: Signals, chunk: object, rows: object) -> None:
        kept = msgspec.structs.replace(self.state, **{n: getattr(self.state, n).copy() for n in COUNTED})
        learn(self, chunk, rows)  # type: ignore[arg-type]
        self.settle()
        advantage, self.state = self.state.advantage, kept
        self.state.advantage[:] = advantage
        learn(self, chunk, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Signals, "learn", peeking)
    assert shown(many_alike(3000)) > 2


COUNTED = ("drafts", "advantage", "steps", "pending", "batches")


@pytest.mark.parametrize("noise", ["bursts", "heavy tails", "two kinds"])
def test_confidence_pays_and_is_calibrated(noise: str) -> None:
    """What was believed of a bin before a step is off by at most 2 % from what the step shows; what the
    drafter itself says is off by more than 5 %."""
    requests, belief = Requests(3, spread=0.4, noise=noise), Belief(traffic.HELLO)
    predicted: list[np.ndarray] = []
    for step in range(5000):
        said, accepted = requests.drafts()
        if step > 3000 and step % 3 == 0:
            found = np.array(believed(belief).by_signal["confidence"].survival)
            so_far = said.cumprod(axis=1)
            bins = np.searchsorted(CONFIDENCE_EDGES, so_far)
            predicted.append(np.stack([found[bins, np.arange(K)], so_far, accepted]).reshape(3, -1))
        group = requests.verify("code", said, accepted, EVERYTHING, "confidence")
        belief.observe(traffic.report(step, [group]))
    mine, drafters, came_true = np.concatenate(predicted, axis=1)
    assert believed(belief).by_signal["confidence"].gain_nats > 0.05
    assert calibration_error(mine, came_true) <= 0.02
    assert calibration_error(drafters, came_true) > 0.05


def calibration_error(predicted: np.ndarray, came_true: np.ndarray) -> float:
    """Expected calibration error over ten bins of equal width."""
    bins = np.minimum((predicted * 10.0).astype(int), 9)
    off = np.bincount(bins, predicted - came_true, 10)
    return float(np.abs(off).sum() / len(predicted))


def trimmed(explored: float, steps: int = 10_000) -> tuple[np.ndarray, np.ndarray, SegmentBelief]:
    """Position acceptance as it would be without a trim, as accepted / reached says, and as it is believed.

    The engine verifies the 48 likeliest of its 80 draft tokens, and in a few steps all of them.
    """
    requests, belief = Requests(5, spread=0.5), Belief(traffic.HELLO)
    everything, seen = np.zeros((2, K)), np.zeros((2, K))
    for step in range(steps):
        said, accepted = requests.drafts()
        so_far = said.cumprod(axis=1)
        verified = so_far >= np.sort(so_far, axis=None)[-48]
        if requests.rng.random() < explored:
            verified = EVERYTHING
        group = requests.verify("code", said, accepted, verified, "confidence")
        belief.observe(traffic.report(step, [group]))
        reached = np.concatenate([EVERYTHING[:, :1], accepted[:, :-1]], axis=1)
        everything += (accepted.sum(axis=0), reached.sum(axis=0))
        seen += ((accepted & verified).sum(axis=0), (reached & verified).sum(axis=0))
    return everything[0] / everything[1], seen[0] / seen[1], believed(belief)


@pytest.fixture
def never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked is what the estimates tend to."""
    monkeypatch.setattr("steersman_controller.belief.evidence.KEEP_ASKED", 1.0 - 1e-12)
    monkeypatch.setattr("steersman_controller.belief.signals.KEEP", 1.0 - 1e-12)


@pytest.mark.usefixtures("never_forgets")
@pytest.mark.parametrize(("explored", "off"), [(0.0, 0.03), (0.02, 0.02)])
def test_a_trim_does_not_bias_acceptance(explored: float, off: float) -> None:
    """Where an engine verifies only the likelier tokens, accepted / reached is more than 6 % too high at the
    first positions; the belief is within 2 % of the truth at every one, and within 3 % where the engine never
    tries anything else."""
    truth, naive, found = trimmed(explored)
    assert (naive[:3] / truth[:3] > 1.06).all()
    assert np.array(found.acceptance[:K]) == pytest.approx(truth, rel=off)
    assert found.drafted_share[:K] == pytest.approx((1.0,) * K, abs=0.02)


@pytest.mark.usefixtures("never_forgets")
def test_a_belief_that_trusts_what_was_verified_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the weights the belief is as biased as accepted / reached."""
    monkeypatch.setattr(Signals, "untrimmed", lambda self, acceptance, share: (acceptance, share))
    truth, _, found = trimmed(0.02, steps=2000)
    assert found.acceptance[0] > 1.06 * truth[0]
    assert found.drafted_share[K - 1] < 0.6


@pytest.mark.usefixtures("never_forgets")
def test_a_trim_by_state_does_not_bias_acceptance() -> None:
    """The same where requests whose drafts went badly get one token only."""
    requests, belief = Requests(7, spread=1.5, lives=10.0), Belief(traffic.HELLO)
    everything, seen = np.zeros((2, K)), np.zeros((2, K))
    for step in range(10_000):
        said, accepted = requests.drafts()
        lengths = np.array([1 if 0 < state.bin <= 5 else K for state in requests.states])
        if requests.rng.random() < 0.1:
            lengths[:] = K
        verified = np.arange(K) < lengths[:, None]
        group = requests.verify("code", said, accepted, verified, "state")
        belief.observe(traffic.report(step, [group]))
        reached = np.concatenate([EVERYTHING[:, :1], accepted[:, :-1]], axis=1)
        everything += (accepted.sum(axis=0), reached.sum(axis=0))
        seen += ((accepted & verified).sum(axis=0), (reached & verified).sum(axis=0))
    truth, naive = everything[0] / everything[1], seen[0] / seen[1]
    assert naive[1] / truth[1] > 1.06
    assert np.array(believed(belief).acceptance[:K]) == pytest.approx(truth, rel=0.02)


def with_counts(signal: str, *counts: tuple[int, ...], again: bool = False) -> StepReport:
    """Three drafts of four tokens, of which 0, 2 and 4 were accepted."""
    group = traffic.group("code", 4, [0, 2, 4])
    found = SignalCounts(signal, counts)  # type: ignore[arg-type]
    signals = (found, found) if again else (found,)
    return traffic.report(900, [msgspec.structs.replace(group, signals=signals)])  # type: ignore[no-any-return]


HONEST = with_counts("state", (0, 1, 3, 3, 2), (0, 2, 3, 3, 2), (0, 3, 3, 3, 1), (0, 4, 3, 3, 1))
LIES = {
    "a bin that there is not": with_counts("state", (10, 1, 3, 3, 2)),
    "a position that there is not": with_counts("state", (0, 9, 3, 3, 2)),
    "more accepted than verified": with_counts("state", (0, 1, 3, 1, 2)),
    "more verified than offered": with_counts("state", (0, 1, 2, 3, 2)),
    "more verified than in the outcomes": with_counts("state", (0, 1, 4, 4, 2)),
    "more accepted than in the outcomes": with_counts("confidence", (0, 3, 2, 2, 2)),
    "more refused than in the outcomes": with_counts("state", (0, 1, 3, 3, 1)),
    "more offered than there are requests": with_counts("state", (0, 1, 9, 3, 2)),
    "the sum of bins": with_counts("state", (0, 1, 2, 2, 2), (1, 1, 2, 2, 0)),
    "one signal twice": with_counts("state", (0, 1, 3, 3, 2), again=True),
    "no number": with_counts("state", (0, 1, float("nan"), float("nan"), float("nan"))),  # type: ignore[arg-type]
    "a negative number": with_counts("state", (0, 1, 3, 3, -1)),
    "no such signal": with_counts("mood", (0, 1, 3, 3, 2)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_report_whose_signals_contradict_it_is_refused(name: str) -> None:
    """It is counted and teaches nothing, not even of what is consistent in it; an honest one does."""
    one, other = (learned(Requests(1), 300, "state", "confidence") for _ in range(2))

    def learned_so_far(belief: Belief) -> bytes:
        return msgspec.json.encode(belief.state(), enc_hook=lambda array: array.tolist())

    one.observe(LIES[name])
    one.fold()
    assert one.refused == 1
    assert learned_so_far(one) == learned_so_far(other)
    one.observe(HONEST)
    assert learned_so_far(one) != learned_so_far(other)
    assert one.refused == 1


def test_when_it_is_asked_makes_no_difference() -> None:
    """With signals in the reports, too, a belief is the same to the last bit however they are folded."""
    requests = Requests(9, spread=1.0)
    reports = []
    for step in range(700):
        said, accepted = requests.drafts()
        if step > 400:
            accepted[:, 1:] = False
        group = requests.verify("code", said, accepted, EVERYTHING, "state", "confidence")
        reports.append(traffic.report(step, [group]))
    beliefs = [Belief(traffic.HELLO) for _ in range(2)]
    for index, report in enumerate(reports):
        for belief in beliefs:
            belief.observe(report)
        if index % 7 == 3 or 100 < index < 120:
            beliefs[1].fold()
    first, second = (
        msgspec.json.encode(belief.state(), enc_hook=lambda array: array.tolist()) for belief in beliefs
    )
    assert beliefs[0].alarms["acceptance"] >= 1
    assert first == second


def test_an_older_engine_and_an_older_sidecar_understand_each_other() -> None:
    """A group without the field decodes to one without signals, and one with it to an old group."""

    class OldGroup(msgspec.Struct, array_like=True):
        segment: str
        context_bucket: int
        requests: int
        commanded_k: int
        requests_drafted: int
        outcomes: tuple[tuple[int, int, int], ...] = ()
        requests_empty: int = 0
        not_drafted: dict[str, int] = {}

    new = HONEST.groups[0]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=OldGroup)
    assert old.outcomes == new.outcomes
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Group).signals == ()
    envelope = codec.Envelope(codec.SCHEMA, 1, "e", 0, HONEST)
    assert codec.decode(codec.encode(b"step", 1, envelope)).envelope.body == HONEST


@pytest.mark.parametrize("name", ["a bin that there is not", "a negative number", "no such signal"])
def test_the_wire_refuses_what_is_out_of_range(name: str) -> None:
    """Bins, positions and counts are checked when a frame is decoded."""
    frames = codec.encode(b"step", 1, codec.Envelope(codec.SCHEMA, 1, "e", 0, LIES[name]))
    with pytest.raises(codec.WireError, match="contract"):
        codec.decode(frames)
