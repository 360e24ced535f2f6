"""`steersman train --segments`: segments are kept where they pay on what was left out, and only there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import segment_truth as truth

from steersman_controller.sidecar.config import read_config
from steersman_controller.trace.inspection import summary, summary_lines
from steersman_controller.trace.recording import read_recording
from steersman_controller.train import segmentation, tree_fit
from steersman_controller.train.bundle import read_bundle
from steersman_controller.train.outcomes import outcomes_of, read_acceptance_trace
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


@pytest.mark.parametrize(("tags", "leaves"), [(13, 2), (14, 0)])
def test_a_tree_leaves_room_for_the_tags(tags: int, leaves: int) -> None:
    """An engine knows fifteen names beside `unknown`; where no two are left, there is no tree."""
    names = ["unknown", *(f"t{n}" for n in range(tags))]
    reports = [
        msgspec.structs.replace(r, segment="unknown" if r.request % 2 else names[1 + r.request // 2 % tags])
        for r in truth.requests(500, seed=9)
    ]
    _, card = learned(reports)
    assert len(card.leaves) == leaves
    assert card.kept is bool(leaves)


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


def test_another_recording_teaches_segments(recorded: Callable[..., Path]) -> None:
    """Requests of one recording, the cost of steps from elsewhere: a folder or a file of it will do."""
    reports = truth.requests(250)
    folder = recorded(reports)
    for path in (folder, folder / "journal.bin"):
        assert read_acceptance_trace(path).reached.tolist() == [report.reached for report in reports]


def test_a_recording_says_which_segments_could_be_one(recorded: Callable[..., Path]) -> None:
    """And which hold several kinds of requests; a segment of another acceptance is neither."""
    mixed = truth.requests(150, tags=("mixed",))
    plain = truth.requests(300, tags=("one", "two"), by_tag=True, easy=0.9, hard=0.9, seed=4)
    other = truth.requests(150, tags=("other",), by_tag=True, easy=0.2, seed=5)
    found = summary(read_recording(recorded([*mixed, *plain, *other])))
    assert ["one", "two"] in found["segments_alike"]
    assert not any("other" in pair for pair in found["segments_alike"])
    assert found["segments_worth_splitting"] == ["mixed"]
    assert found["segments"]["mixed"]["between_sd"] > 0.2
    lines = "\n".join(summary_lines(found))
    assert "segment mixed: acceptance 0." in lines
    assert "holds more than one kind of request" in lines


def test_a_tree_is_pruned_to_what_it_tells_apart() -> None:
    """Grown with fifteen leaves on two kinds of requests, questions that make no difference are left out."""
    outcomes = outcomes_of(truth.requests(900, seed=6))
    features = outcomes.features()
    tree = tree_fit._exported(tree_fit._grown(features, outcomes, 15), outcomes, features)
    assert tree is not None
    assert len(tree.features) < 29
    parents = [node for node, feature in enumerate(tree.features) if feature >= 0]
    both = [(tree.segments[tree.left[node]], tree.segments[tree.right[node]]) for node in parents]
    assert all(not one or one != two for one, two in both), "no question whose answer does not matter"
