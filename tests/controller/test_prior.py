"""What a belief begins with: a bundle's tables, as far as they hold, until evidence corrects them."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import train_truth as truth

from steersman_controller.belief.belief import Belief
from steersman_controller.belief.prior import CostPrior, Prior, WithoutDrafter, choose
from steersman_controller.core import Controller
from steersman_controller.events import ControllerConfig, Event, Received, Restored, Started, Ticked
from steersman_controller.fleet import Fleet
from steersman_controller.restart import compare
from steersman_controller.trace.journal import decode_event, encode_event
from steersman_controller.train.priors import read_priors
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import Fingerprint, Group, Hello, StepReport
from steersman_policies.plan import Plan
from steersman_policies.policy import load

Run = Callable[..., int]

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "eagle", "none", "bfloat16", "h100", "full")
HELLO = Hello(FINGERPRINT, 5, tuple(range(6)), 0, 3, 64, True, True, False, True)
NAMES = ",".join(
    f"{name}={value}" for name, value in msgspec.structs.asdict(FINGERPRINT).items() if value != ""
)
SEEN = (1, 2, 4, 8, 16, 64)
UNSEEN = (3, 6, 12, 24, 48)
HOST_S = 0.0005


def report(batch: int, k: int, noise: float = 1.0, accepted: int | None = None) -> StepReport:
    """A step of the machine of `train_truth`, where every request drafts K tokens."""
    draft_s = 1e-3 * (k * max(0.9, 0.02 * batch) + 0.4) if k else 0.0
    kept = k // 2 if accepted is None else accepted
    return StepReport(
        step=1,
        started_s=1.0,
        draft_s=draft_s * noise,
        verify_s=(1e-3 * truth.true_ms(batch, k) - draft_s - HOST_S) * noise,
        other_s=HOST_S,
        decode_requests=batch,
        prefill_tokens=0,
        target_tokens=batch * (k + 1),
        context_tokens=300 * batch,
        drafting_depth=k,
        requests_drafting=batch if k else 0,
        waiting=0,
        kv_used_fraction=0.0,
        committed_tokens=batch * (kept + 1),
        plan_id=1,
        groups=(Group("chat", 1, batch, k, batch if k else 0, ((k, kept, batch),) if k else ()),),
    )


def stream(steps: int, batches: tuple[int, ...] = UNSEEN, seed: int = 1) -> list[StepReport]:
    """Steps at batch sizes that the bundle has not seen."""
    chance = random.Random(seed)
    found, clock_s = [], 0.0
    for number in range(steps):
        one = report(chance.choice(batches), chance.choice((0, 1, 3, 5)), chance.lognormvariate(0.0, 0.03))
        clock_s += one.busy_s
        found.append(msgspec.structs.replace(one, step=number, started_s=clock_s))
    return found


def errors(prior: Prior | None, steps: list[StepReport]) -> np.ndarray:
    """|predicted - actual| / actual, each step predicted before it is learned."""
    belief, out = Belief(HELLO, prior), []
    for one in steps:
        predicted = belief.cost.predict(
            target_tokens=one.target_tokens,
            context_tokens=one.context_tokens,
            prefill_tokens=0,
            depth=one.drafting_depth,
            requests_drafting=one.requests_drafting,
            decode_requests=one.decode_requests,
        )
        out.append(abs(predicted.step_s / one.busy_s - 1.0))
        belief.observe(one)
    return np.array(out)


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on other batch sizes, drafting and forward timed apart, K = 0 without a drafter included."""
    from steersman_controller.train.request import request_of
    from steersman_controller.train.run import train

    folder = tmp_path_factory.mktemp("bundle")
    rows = truth.rows(batches=SEEN, noise=0.01, repeats=3)
    for row in rows:
        batch, k = row["batch_size"], row["num_draft_tokens"]
        draft_ms = k * max(0.9, 0.02 * batch) + 0.4 if k else 0.0
        row |= {
            "draft_ms": draft_ms,
            "verify_ms": row["step_ms"] - draft_ms - 1e3 * HOST_S,
            "drafter_loaded": "",
        }
    for batch in SEEN:
        bare = {
            "step_ms": 0.6 * truth.true_ms(batch, 0),
            "draft_ms": "",
            "verify_ms": "",
            "drafter_loaded": "false",
        }
        rows.append({"batch_size": batch, "num_draft_tokens": 0} | bare)
    shares = [{"segment": "chat", "position": j, "acceptance": 0.8} for j in range(1, 6)]
    out = folder / "bundle.zip"
    request = request_of(
        step_times=truth.write(folder / "steps.csv", rows),
        acceptance=truth.write(folder / "acceptance.csv", shares),
        fingerprint=[NAMES],
        out=out,
        created_at="then",
        columns=[],
        by="",
        where=[],
        recording=None,
        evaluate_choice="",
        segments=False,
        acceptance_trace=None,
        target_config=None,
        drafter_config=None,
        device="",
        tensor_parallel=1,
        operators=None,
        measured=None,
        measured_columns=[],
        measured_where=[],
    )
    train(request, lambda *_: None)
    return out


@pytest.fixture(scope="module")
def prior(bundle_path: Path) -> Prior:
    """What the bundle says for this very engine."""
    found = choose(read_priors(bundle_path), "e", FINGERPRINT).prior
    assert found is not None
    return found


def test_the_same_engine_gets_a_model(bundle_path: Path) -> None:
    """With an equal fingerprint the level is believed."""
    found = choose(read_priors(bundle_path), "e", FINGERPRINT)
    assert found.prior is not None
    assert found.prior.cost is not None
    assert found.prior.cost.is_level_known
    assert "model of this very engine" in found.text


@pytest.mark.parametrize(
    ("change", "said", "cost", "acceptance"),
    [
        ({"engine_version": "2"}, "a prior only", True, True),
        ({"graph_mode": "eager"}, "graph_mode 'full', this is 'eager'", True, True),
        ({"device": "a100"}, "its step times are not used, its acceptance is", False, True),
        ({"tensor_parallel": 2}, "tensor_parallel 1, this is 2", False, True),
        ({"target": "other"}, "not used: made for target 'target', this is 'other'", False, False),
        ({"drafter": "other"}, "not used", False, False),
    ],
)
def test_another_engine_gets_a_weaker_prior_or_none(
    bundle_path: Path, change: dict[str, object], said: str, cost: bool, acceptance: bool
) -> None:
    """Other software: the shape. Another device: acceptance alone. Another target or drafter: nothing."""
    found = choose(read_priors(bundle_path), "e", msgspec.structs.replace(FINGERPRINT, **change))
    assert said in found.text
    assert "\n" not in found.text
    kept = found.prior
    assert (kept is not None and kept.cost is not None) == cost
    assert bool(kept is not None and kept.acceptance) == acceptance
    if kept is not None and kept.cost is not None:
        assert not kept.cost.is_level_known


def test_a_bundle_that_does_not_say_what_it_is_for_is_a_weak_prior(prior: Prior) -> None:
    """Its level is measured anew, and its acceptance counts for less."""
    nameless = msgspec.structs.replace(prior, fingerprint=None)
    found = choose([nameless], "e", FINGERPRINT)
    assert "does not say what it was made for" in found.text
    assert found.prior is not None
    assert found.prior.drafts < prior.drafts
    partly = msgspec.structs.replace(FINGERPRINT, graph_mode="")
    assert (
        "for which graph_mode"
        in choose([msgspec.structs.replace(prior, fingerprint=partly)], "e", FINGERPRINT).text
    )


def test_the_prior_that_fits_best_is_taken(prior: Prior) -> None:
    """By fingerprint first; among equals by the engine's name."""
    other = msgspec.structs.replace(prior, fingerprint=msgspec.structs.replace(FINGERPRINT, device="a100"))
    mine = msgspec.structs.replace(prior, engine_id="e", source="mine")
    assert choose([other, prior, mine], "e", FINGERPRINT).prior == mine
    assert choose([other, mine, prior], "f", FINGERPRINT).prior == mine
    assert choose([], "e", FINGERPRINT).prior is None


def test_the_first_predictions_are_good_with_a_bundle(prior: Prior) -> None:
    """On batch sizes that it has not seen the first 100 steps are predicted far better than from nothing."""
    steps = stream(100)
    known, nothing = errors(prior, steps), errors(None, steps)
    assert known[0] < 0.12
    assert known[:10].mean() < 0.07
    assert known.mean() < 0.06
    assert nothing[:10].mean() > 3.0 * known[:10].mean()
    assert nothing.mean() > 1.3 * known.mean()


def test_a_shape_alone_needs_one_step(prior: Prior) -> None:
    """Of another software version every step lasts twice as long: after the first one the level is right."""
    assert prior.cost is not None
    weak = msgspec.structs.replace(prior, cost=msgspec.structs.replace(prior.cost, is_level_known=False))
    slow = [
        msgspec.structs.replace(
            s, draft_s=2.0 * s.draft_s, verify_s=2.0 * s.verify_s, other_s=2.0 * s.other_s
        )
        for s in stream(100)
    ]
    found = errors(weak, slow)
    assert found[0] > 0.4
    assert found[1:11].mean() < 0.1
    assert errors(prior, slow)[1:11].mean() > 2.0 * found[1:11].mean()


@pytest.mark.parametrize("wrong", ["x3", "reversed", "constant"])
def test_a_wrong_bundle_is_overcome(prior: Prior, wrong: str) -> None:
    """Times three, upside down or flat: after 300 steps it is at most a third worse than nothing."""
    cost = prior.cost
    assert cost is not None
    rows = {
        "x3": tuple(3.0 * s for s in cost.verify_s),
        "reversed": cost.verify_s[::-1],
        "constant": (cost.verify_s[-1],) * len(cost.verify_s),
    }
    misled = msgspec.structs.replace(prior, cost=msgspec.structs.replace(cost, verify_s=rows[wrong]))
    steps = stream(600)
    assert errors(misled, steps)[300:].mean() < 1.34 * errors(None, steps)[300:].mean()


def test_measured_jumps_stay_in_the_tables() -> None:
    """A jump at a graph bucket in the prior is one in what planners read, also after evidence."""
    grid = (1, 32, 33, 64, 512)
    cost = CostPrior(grid, (0.010, 0.010, 0.016, 0.016, 0.040), 0.0, 0.0, (0.0, 0.0, 0.0, 0.0))
    belief = Belief(HELLO, Prior("stairs", cost=cost))
    for one in stream(300, (8, 16)):
        tokens = one.target_tokens
        belief.observe(msgspec.structs.replace(one, verify_s=1.2 * (0.010 if tokens <= 32 else 0.016)))
    table = belief.cost.compile(0.0)
    assert {32, 33} <= set(table.tokens_grid)
    assert table.verify_at(33, 0.0) / table.verify_at(32, 0.0) > 1.4
    assert Belief(HELLO).cost.compile(0.0).verify_at(33, 0.0) < 1.1 * Belief(HELLO).cost.compile(
        0.0
    ).verify_at(32, 0.0)


def controller(prior: Prior | None) -> Controller:
    chosen = choose([] if prior is None else [prior], "e", FINGERPRINT)
    config = ControllerConfig(mode="steer", seed=3)
    return Controller(HELLO, fingerprint_digest(FINGERPRINT), load("goodput"), config, chosen)


def first_k(prior: Prior | None) -> int:
    """K of the first plan made with one step of chat seen, at batch 4 and short contexts."""
    one = controller(prior)
    one.observe(report(4, 0), 1.0)
    plan = one.plan(1.0)
    assert plan is not None
    rows = plan.proposal_length["chat"]
    return rows[plan.batch_edges.index(4)][0]


def test_the_first_plan_drafts_where_the_lower_bound_of_the_prior_shows_a_gain(prior: Prior) -> None:
    """Known good acceptance: K above 0 at once. Bad, hardly known, or no acceptance: K = 0, and probes."""
    assert first_k(prior) >= 2
    poor = msgspec.structs.replace(prior, acceptance={"chat": (0.05,) * 5})
    assert first_k(poor) == 0
    fair = msgspec.structs.replace(prior, acceptance={"chat": (0.3,) * 5})
    assert first_k(msgspec.structs.replace(fair, drafts=1000.0)) == 1
    assert first_k(msgspec.structs.replace(fair, drafts=15.0)) == 0
    assert first_k(msgspec.structs.replace(prior, acceptance={})) == 0
    assert first_k(None) == 0


def test_probes_go_on_while_only_a_prior_speaks(prior: Prior) -> None:
    """What was never seen here is tried as often as without a prior."""
    one = controller(prior)
    one.observe(report(4, 0), 1.0)
    plan = one.plan(1.0)
    assert plan is not None
    assert plan.explore is not None
    assert plan.explore.epsilon == 0.2
    chat = next(found for found in one.segments() if found.segment == "chat")
    assert chat.weight == 0.0
    assert chat.acceptance[0] == pytest.approx(0.8, abs=0.05)
    assert 0.5 < chat.acceptance_low[0] < 0.75


def test_acceptance_is_corrected_by_what_is_seen(prior: Prior) -> None:
    """A drafter that accepts a tenth is believed to after 100 steps, whatever the prior said."""
    belief, chance = Belief(HELLO, prior), random.Random(2)
    for step in range(100):
        kept = [int(chance.random() < 0.1) for _ in range(8)]
        group = Group("chat", 1, 8, 1, 8, tuple((1, a, kept.count(a)) for a in (0, 1) if a in kept))
        belief.observe(
            msgspec.structs.replace(report(8, 1), step=step, started_s=0.02 * step, groups=(group,))
        )
    chat = next(found for found in belief.segments() if found.segment == "chat")
    assert chat.acceptance[0] < 0.14


def events(prior: Prior | None) -> list[Event]:
    """A sidecar that was given a prior, and an engine."""
    priors = () if prior is None else (prior,)
    found: list[Event] = [
        Started(0.0, 1, "0", 1, ControllerConfig(mode="steer", seed=3), "goodput", {}, priors)
    ]
    found.append(Received(1.0, "e", 5, 0, 0, HELLO))
    for number, one in enumerate(stream(60), start=1):
        found += [Received(1.0 + 0.3 * number, "e", 5, number, 0, one), Ticked(1.1 + 0.3 * number, "e", None)]
    return found


def replayed(stream: list[Event]) -> tuple[list[Plan | None], bytes]:
    first = stream[0]
    assert isinstance(first, Started)
    fleet = Fleet(first)
    plans = [fleet.apply(event) for event in stream[1:]]
    return plans, fleet.controllers["e"].snapshot()


def test_a_recording_replays_with_its_prior(prior: Prior) -> None:
    """The start of a recording carries the prior: what is read back gives equal plans and snapshots."""
    written = events(prior)
    read = [decode_event(encode_event(event), "here") for event in written]
    assert replayed(read) == replayed(written)
    assert replayed(events(None)) != replayed(written)


def test_a_snapshot_goes_on_with_the_prior_it_was_taken_under(prior: Prior) -> None:
    """A sidecar that is given no bundle, or another one, learns on as if nothing had happened."""
    written = events(prior)
    cut = len(written) // 2
    first, start = Fleet(written[0]), written[0]  # type: ignore[arg-type]
    assert isinstance(start, Started)
    for event in written[1:cut]:
        first.apply(event)
    second = Fleet(msgspec.structs.replace(start, priors=()))
    second.apply(written[1])
    second.apply(Restored(1.0, "e", first.controllers["e"].snapshot()))
    for event in written[cut:]:
        first.apply(event)
        if isinstance(event, Received):
            second.apply(msgspec.structs.replace(event, sequence=event.sequence))
    assert second.controllers["e"].chosen.prior == prior
    ours, theirs = (fleet.controllers["e"].belief.cost.compile(0.0) for fleet in (first, second))
    assert ours == theirs


def loaded(prior: Prior | None, k: int = 3, steps: int = 200) -> Controller:
    one = controller(prior)
    for number in range(steps):
        step = msgspec.structs.replace(report(16, k, accepted=0), step=number, started_s=0.02 * number)
        one.observe(step, 1.0 + 0.02 * number)
    return one


def test_a_restart_without_a_drafter_is_said_to_win_where_it_would(prior: Prior) -> None:
    """Measured 40 % faster without a drafter, and nothing is accepted: it wins, with its source. From inside
    nobody can tell."""
    found = loaded(prior).restart()
    assert found is not None
    assert found.wins
    assert found.gain == pytest.approx(1.0 / 0.6 - 1.0, rel=0.1)
    assert "bundle.zip" in found.text
    assert loaded(None).restart() is None
    assert loaded(None).status(9.0).restart is None


def test_a_restart_is_not_said_to_win_where_it_would_not(prior: Prior) -> None:
    """As fast as here, or within what is uncertain: it does not win."""
    assert prior.cost is not None
    for factor in (1.0, 0.99):
        rows = (tuple(factor * 1e-3 * truth.true_ms(batch, 0) for batch in SEEN),)
        cost = msgspec.structs.replace(prior.cost, without_drafter=WithoutDrafter(SEEN, (0,), rows))
        found = loaded(msgspec.structs.replace(prior, cost=cost)).restart()
        assert found is not None
        assert not found.wins


def test_a_slower_machine_makes_both_slower(prior: Prior) -> None:
    """The step without a drafter is scaled by how much longer steps take here than in the bundle."""
    one = controller(prior)
    for number in range(200):
        step = report(16, 0)
        slow = msgspec.structs.replace(step, verify_s=2.0 * step.verify_s, other_s=2.0 * step.other_s)
        one.observe(msgspec.structs.replace(slow, step=number, started_s=0.05 * number), 1.0 + 0.05 * number)
    load_, cost = one.belief.load, one.belief.cost.compile(0.0)
    found = compare(prior, cost, one.segments(), (0,), load_)
    assert found is not None
    assert found.gain == pytest.approx(1.0 / 0.6 - 1.0, rel=0.1)


def test_planners_see_how_sure_the_tables_are(prior: Prior) -> None:
    """Nothing known: no interval. A bundle's own at first, then half the width of the bounds by tokens."""
    assert Belief(HELLO).cost.compile(0.0).half_interval == ()
    belief = Belief(HELLO, prior)
    assert prior.cost is not None
    low, high = prior.cost.interval
    first = belief.cost.compile(0.0)
    assert first.half_interval == pytest.approx([0.5 * (high - low)] * len(first.tokens_grid))
    for one in stream(1500, (4, 16)):
        belief.observe(one)
    table = belief.cost.compile(0.0)
    assert len(table.half_interval) == len(table.tokens_grid)
    low, high = belief.cost.bounds(16)
    assert table.half_interval[table.tokens_grid.index(16)] == pytest.approx(0.5 * (high - low))
    assert table.half_interval[table.tokens_grid.index(16)] == pytest.approx(1.645 * 0.03, rel=0.35)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens_grid": (1, 8, 8)},
        {"tokens_grid": ()},
        {"verify_s": (0.1, 0.2)},
        {"interval": (1.0,)},
        {"relative_error": float("nan")},
        {"without_drafter": {"batches": (1, 2), "contexts": (), "step_s": ()}},
    ],
)
def test_a_prior_that_contradicts_itself_is_refused(prior: Prior, wrong: dict[str, object]) -> None:
    """In a recording as anywhere: one line, no crash later on."""
    tree = msgspec.to_builtins(prior)
    tree["cost"] |= {"tokens_grid": (1, 8, 9), "verify_s": (0.1, 0.2, 0.3)}
    assert msgspec.convert(tree, Prior).cost is not None
    tree["cost"] |= wrong
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=Prior)
