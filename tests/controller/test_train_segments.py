"""`steersman train --segments`: segments are kept where they pay on what was left out, and only there."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import segment_truth as truth

from steersman_controller.request_spread import RequestSpread, merged
from steersman_controller.sidecar.config import read_config
from steersman_controller.train import segmentation, tree_fit
from steersman_controller.train.bundle import read_bundle
from steersman_controller.train.outcomes import Outcomes, outcomes_of, read_acceptance_trace
from steersman_controller.train.segment_gain import Step
from steersman_controller.train.segmentation import segments_of
from steersman_policies.messages import Hello, RequestReport, StepReport
from steersman_policies.prompt_statistics import PromptStatistics
from steersman_policies.segment_tree import SegmentTree
from steersman_policies.segmenter import Segmenter, SegmentRule
from steersman_policies.view import StepCost

Run = Callable[..., int]
COST = StepCost(
    (1, 400),
    (0,),
    (0,),
    (((0.01, 0.2),),),
    (1, 64),
    tuple((0.0005 * k,) * 2 for k in range(7)),
    (0.0, 0.0),
    0.05,
)
STEP = Step(COST, (1, 16), 0)


def learned(reports: list[RequestReport], before: Segmenter | None = None) -> Any:
    """Segmenter and card."""
    return segments_of(outcomes_of(reports), before or Segmenter(), STEP)


def test_a_tree_that_pays_is_kept() -> None:
    """The question that makes the difference is found; held out, loss falls and goodput rises."""
    segmenter, card = learned(truth.requests(600))
    assert card.kept
    assert card.tree_over_tags.low > 0.05
    assert [leaf.segment for leaf in card.leaves] == ["tree/1", "tree/2"]
    assert "repeated_fraction > " in card.leaves[1].when[0]
    assert card.leaves[0].acceptance == pytest.approx(0.4, abs=0.05)
    assert card.leaves[1].acceptance == pytest.approx(0.9, abs=0.05)
    assert segmenter.segment_of("", {}, PromptStatistics(repeated_fraction=0.625)) == "tree/2"
    for gain in card.goodput["tree"]:
        assert gain.mean > 0.02, "it is worth something"
    assert all(gain.mean == 0.0 for gain in card.goodput["tags"]), "there are no tags"


@pytest.mark.parametrize("between_sd", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_that_does_not_pay_is_kept_out(between_sd: float, seed: int) -> None:
    """Requests that differ, but not by anything known when they come: no segmenter, and the card says why."""
    reports = truth.requests(400, easy=0.6, hard=0.6, between_sd=between_sd, seed=seed)
    segmenter, card = learned(reports)
    assert segmenter is None
    assert not card.kept
    assert card.reason in {
        "no question about the prompt tells requests apart",
        "its held-out gain is within the noise",
    }


def test_a_gain_on_what_was_learned_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: scored on the requests that it was grown from, chance looks like a gain."""
    reports = truth.requests(400, easy=0.6, hard=0.6, between_sd=0.25)
    outcomes = outcomes_of(reports)
    monkeypatch.setattr(tree_fit, "LEAST_LEAF", 5)
    grown = tree_fit._grown(outcomes.features(), outcomes, 15)
    leaves = grown.apply(outcomes.features())
    shares = tree_fit.rates(leaves, outcomes)
    seen = np.array([shares[leaf] for leaf in leaves.tolist()])
    one = np.full(len(outcomes), shares[None])
    falls = tree_fit.log_loss(one, outcomes) - tree_fit.log_loss(seen, outcomes)
    assert segmentation._gain(falls, outcomes).low > 0.0
    assert learned(reports)[0] is None


def test_a_question_mixed_up_on_export_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: what is deployed asks about the wrong number. What is scored is what would be deployed,
    so nothing is gained and it is kept out."""
    exported = tree_fit._exported

    def mixed_up(*args: Any) -> SegmentTree | None:
        tree = exported(*args)
        return tree and msgspec.structs.replace(tree, thresholds=tuple(0.0 for _ in tree.thresholds))

    monkeypatch.setattr(tree_fit, "_exported", mixed_up)
    segmenter, card = learned(truth.requests(400))
    assert segmenter is None
    assert card.tree_over_tags.low <= 0.0


def test_leaves_mixed_up_on_export_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the sides of a question are swapped; nothing is trained then."""
    made = tree_fit.SegmentTree

    def swapped(**columns: Any) -> SegmentTree:
        return made(**{**columns, "left": columns["right"], "right": columns["left"]})

    monkeypatch.setattr(tree_fit, "SegmentTree", swapped)
    with pytest.raises(AssertionError, match="sorts differently"):
        learned(truth.requests(400))


def test_what_is_deployed_sorts_as_what_was_grown() -> None:
    """The exported arrays lead every request to the leaf of the estimator, numbered by acceptance."""
    outcomes = outcomes_of(truth.requests(500, seed=3))
    features = outcomes.features()
    grown = tree_fit._grown(features, outcomes, 6)
    tree = tree_fit._exported(grown, outcomes, features)
    assert tree is not None
    leaves = grown.apply(features).tolist()
    pairs = {(leaf, tree.segment_of(each)) for leaf, each in zip(leaves, outcomes.statistics, strict=True)}
    assert len(pairs) == len(set(leaves))
    shares = [
        spread.acceptance
        for _, spread in sorted(
            tree_fit.spreads_by(
                np.array([tree.segment_of(each) for each in outcomes.statistics]), outcomes
            ).items()
        )
    ]
    assert shares == sorted(shares)


def test_tags_that_cannot_be_told_apart_become_one() -> None:
    """By effective sample sizes; a tag that differs stays, and so does one with hardly any requests."""
    reports = truth.requests(600, tags=("a", "b", "c"), by_tag=True)
    rare = truth.requests(9, tags=("rare",), by_tag=True, seed=5)
    segmenter, card = learned([*reports, *rare])
    assert card.same_as == {"c": "b"} or card.same_as == {"b": "c"}
    assert not card.kept
    assert card.reason == "every request has a tag, so no request would ask a tree"
    assert segmenter.tree is None
    assert segmenter.segment_of("c", {}) == segmenter.segment_of("b", {})
    assert segmenter.segment_of("a", {}) == "a"
    assert card.over_one["tags"].low > 0.05


def test_requests_of_a_tree_have_no_tag_to_the_next_training() -> None:
    """Segments that a tree gave are learned anew; the rules are carried on, the version rises."""
    reports = [
        msgspec.structs.replace(report, segment=f"tree/{1 + report.request % 2}")
        for report in truth.requests(400)
    ]
    before = Segmenter(4, (SegmentRule("lora", "sql", "code"),))
    segmenter, card = learned(reports, before)
    assert card.tagged == 0
    assert (segmenter.version, segmenter.rules) == (5, before.rules)
    assert segmenter.tree is not None


def test_acceptance_that_does_not_depend_on_k_is_not_a_difference() -> None:
    """The ratio trap: accepted / drafted falls with K alone. Two tags that differ in K only are merged."""

    def at(k: int, seed: int) -> RequestSpread:
        rng, found = random.Random(seed), RequestSpread()
        for _ in range(80):
            accepted = reached = 0
            for _ in range(20):
                kept = next((j for j in range(k) if rng.random() >= 0.7), k)
                accepted, reached = accepted + kept, reached + min(kept + 1, k)
            found.add(accepted, reached)
        return found

    spreads = {"short": at(2, 0), "long": at(8, 1)}
    assert len(set(merged(spreads).values())) == 1
    assert abs(spreads["short"].accepted / (80 * 20 * 2) - spreads["long"].accepted / (80 * 20 * 8)) > 0.2


@pytest.mark.parametrize(("sd", "split"), [(0.0, False), (0.2, True)])
def test_a_segment_of_several_kinds_is_noticed(sd: float, split: bool) -> None:
    """Spread between requests beyond chance is measured, and makes a request count for less."""
    spread = RequestSpread()
    for report in truth.requests(400, easy=0.6, hard=0.6, between_sd=sd):
        spread.add(report.accepted, report.reached)
    assert spread.worth_splitting is split
    assert spread.between_sd == pytest.approx(sd, abs=0.04)
    assert (spread.dispersion > 2.0) is split


@pytest.fixture
def recorded(tmp_path: Path, hello: Hello, step: Callable[..., StepReport]) -> Callable[..., Path]:
    """Writes a recording with these requests."""

    def make(reports: list[RequestReport]) -> Path:
        folder = tmp_path / "recording"
        folder.mkdir()
        truth.record(folder / "journal.bin", hello, step(0), reports)
        return folder

    return make


def test_the_bundle_brings_the_tree_to_the_sidecar(
    recorded: Callable[..., Path], tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained on a recording, shown by `inspect`, taken by `serve --segments` into the plan's segmenter."""
    folder, out = recorded(truth.requests(400)), tmp_path / "bundle.zip"
    assert train_verbs("train", "--recording", folder, "--segments", "--out", out) == 0
    capsys.readouterr()
    assert train_verbs("inspect", out) == 0
    text = capsys.readouterr().out
    for words in (
        "held-out log loss per decided draft token",
        "the tree pays: kept",
        "where repeated_fraction > ",
        "predicted goodput over one K for all",
        "unknown: acceptance ",
        "holds more than one kind of request",
        "segmenter version 1: tags, then 0 rules, then a tree of 2 segments",
    ):
        assert words in text
    segmenter = read_bundle(out).manifest.segmenter
    config = read_config(None, {}, {"segments": str(out)})
    assert config.controller.segmenter == segmenter
    assert train_verbs("inspect", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["segments"]["kept"] is True


def test_a_bundle_without_a_segmenter_says_so(
    recorded: Callable[..., Path], tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card says that the tree does not pay, and the sidecar refuses a bundle that sorts nothing."""
    folder, out = recorded(truth.requests(300, easy=0.6, hard=0.6)), tmp_path / "bundle.zip"
    assert train_verbs("train", "--recording", folder, "--segments", "--out", out) == 0
    text = capsys.readouterr().out
    assert "the tree does not pay: kept out" in text
    assert "no segmenter in this bundle: requests are sorted as before" in text
    with pytest.raises(ValueError, match="this bundle has no segmenter"):
        read_config(None, {}, {"segments": str(out)})


def test_too_little_evidence_is_one_clear_line(
    recorded: Callable[..., Path], train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few requests, or an engine that tells no statistics: what was found and what is needed."""
    old = [msgspec.structs.replace(r, statistics=None) for r in truth.requests(300)]
    folder = recorded(old)
    assert train_verbs("train", "--recording", folder, "--segments") == 2
    assert "--segments: 0 requests with prompt statistics and decided drafts, at least 200" in (
        capsys.readouterr().err
    )
    assert train_verbs("train", "--recording", folder, "--acceptance-trace", folder / "x") == 2
    assert "is evidence for --segments" in capsys.readouterr().err
    assert train_verbs("train", "--step-times", folder / "x", "--segments") == 2
    assert "needs --recording or --acceptance-trace" in capsys.readouterr().err


def test_reports_that_contradict_themselves_teach_nothing() -> None:
    """More accepted than decided, or more decided than drafted: left out, the others count."""
    good = truth.requests(10)
    bad = [
        msgspec.structs.replace(good[0], reached=good[0].accepted - 1),
        msgspec.structs.replace(good[1], reached=good[1].drafted + 1),
        msgspec.structs.replace(good[2], reached=0),
    ]
    assert len(outcomes_of([*good, *bad])) == len(good)


def trace(path: Path, count: int) -> Path:
    """An acceptance trace of two kinds of requests, told apart by the length of their prompts."""
    rng = random.Random(0)
    lines = []
    for number in range(count):
        share = 0.85 if number % 2 else 0.3
        accepted = [next((j for j in range(5) if rng.random() >= share), 5) for _ in range(50)]
        lines.append(
            {
                "request_id": f"r{number}",
                "segment": "unknown",
                "prompt_tokens": 700 if number % 2 else 30,
                "output_tokens": 50,
                "accepted_by_position": accepted,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_foreign_acceptance_trace_teaches_too(tmp_path: Path) -> None:
    """Replayed step by step; what it tells of the prompt is what a tree can ask."""
    outcomes = read_acceptance_trace(trace(tmp_path / "t.jsonl", 300))
    segmenter, card = segments_of(outcomes, Segmenter(), STEP)
    assert card.kept
    assert segmenter is not None
    assert "prompt_tokens" in card.leaves[0].when[0]
    assert [leaf.acceptance for leaf in card.leaves] == pytest.approx([0.3, 0.85], abs=0.05)


def test_a_trace_is_replayed_exactly(tmp_path: Path) -> None:
    """A step commits min(accepted, K) + 1 tokens, K being the most that was ever accepted."""
    path = tmp_path / "t.jsonl"
    numbers = {
        "request_id": 1,
        "prompt_tokens": 9,
        "output_tokens": 6,
        "accepted_by_position": [2, 9, 9, 0, 3, 0],
    }
    path.write_text(json.dumps({**numbers, "accepted_by_position": [2, 1, 1, 0, 3, 0]}) + "\n")
    found: Outcomes = read_acceptance_trace(path)
    # Steps at 0 (2 accepted, the third rejected), 3 (rejected), 4 (all three accepted).
    assert (found.steps[0], found.accepted[0], found.reached[0]) == (3, 5, 7)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"request_id": 1, "promt_tokens": 3}', ["line 1", "promt_tokens", "did you mean 'prompt_tokens'?"]),
        ('{"request_id": 1}', ["line 1", "missing required field"]),
        ("no json", ["line 1", "malformed"]),
        (
            '{"request_id":1,"prompt_tokens":3,"output_tokens":2,"accepted_by_position":[0,0]}',
            ["no draft token was accepted anywhere"],
        ),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, line: str, words: list[str]) -> None:
    """File, line, key and what it may have meant."""
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is checked below
        read_acceptance_trace(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


YAML = "rules: [{attribute: tenant, value: acme, segment: vip}]\n"


def test_rules_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    """As strict as in the configuration, which must then say nothing; it is part of what is printed."""
    file = tmp_path / "segments.yaml"
    file.write_text(YAML)
    config = read_config(None, {}, {"segments": str(file)})
    assert config.controller.segmenter.segment_of("", {"tenant": "acme"}) == "vip"
    assert config.segments == ""
    with pytest.raises(ValueError, match="says already how requests are sorted"):
        read_config(None, {}, {"segments": str(file), "controller.segmenter.version": 2})
    for text, words in (
        ("rules: [{attribut: tenant, value: a, segment: b}]", "'rules.0.attribut', did you mean 'attribute'"),
        ("tree: {features: [0], thresholds: [0], left: [0], right: [0], segments: ['']}", "child 0, allowed"),
        ("same_as: {a: b, b: c}", "'a' counts as 'b', which counts as another one"),
        ("[1]", "must map keys to values"),
        ("a: [", "neither a bundle nor YAML"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"segments\.yaml") as error:
            read_config(None, {}, {"segments": str(file)})
        assert words in str(error.value)


def test_a_tag_with_an_slo_is_no_other_tag(tmp_path: Path) -> None:
    """What was promised to one segment is not lost in another."""
    file = tmp_path / "segments.yaml"
    file.write_text("same_as: {chat: talk}")
    slo = {"controller.slo": {"chat": {"ttft_s": 1, "tpot_s": 0.1}}}
    with pytest.raises(ValueError, match="'chat' counts as 'talk', but has an SLO of its own"):
        read_config(None, {}, {"segments": str(file), **slo})
