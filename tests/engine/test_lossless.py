import json
from typing import Any

import pytest
from tiny_models import prompts, target_of

from steersman_engine.bench.chisquare import goodness_p
from steersman_engine.bench.greedy import GreedyRun, check_greedy, compare, generate
from steersman_engine.bench.lossless import run, verdict
from steersman_engine.bench.sampled import exact_probs, planted_engine_p, sample_counts, tiny_target
from steersman_engine.decode import sampling
from steersman_engine.decode.slots import SlotCache
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.steering import Launch

SAMPLES = 2_500


def greedy_runs() -> list[GreedyRun]:
    return check_greedy(target_of(), prompts(6), max_tokens=20, seed=0, progress=lambda _: None)


def sampled_p() -> float:
    target = tiny_target(0)
    drawn = sample_counts(
        target,
        Launch(3),
        PromptLookup(max_ngram=2, min_ngram=1),
        samples=SAMPLES,
        length=3,
        temperature=1.0,
        top_p=1.0,
        seed=1,
    )
    return goodness_p(drawn, exact_probs(target, 3, 1.0, 1.0))


def test_drafting_changes_no_greedy_token() -> None:
    """Ten runs, many rejections, no divergence."""
    runs = greedy_runs()
    assert [run.name for run in runs] == [*(f"K={k}" for k in range(1, 9)), "random 0", "random 1"]
    assert sum(run.divergences for run in runs) == 0
    assert sum(run.drafted - run.accepted for run in runs) > 200
    assert sum(run.accepted for run in runs) > 50


def test_a_skipped_rollback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected drafts that stay in the cache change what follows."""
    monkeypatch.setattr(SlotCache, "truncate", lambda *_: None)
    assert sum(run.divergences for run in greedy_runs()) > 0


def test_one_accepted_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that the target would not have chosen shows in the output."""
    exact = sampling.greedy_accepted
    monkeypatch.setattr(
        sampling, "greedy_accepted", lambda choices, drafts: min(len(drafts), exact(choices, drafts) + 1)
    )
    assert sum(run.divergences for run in greedy_runs()) > 0


def test_sampled_output_follows_the_target() -> None:
    """Through the whole engine, against the distribution written down."""
    assert sampled_p() > 1e-3


def test_a_wrong_residual_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing from the whole target after a rejection favours the draft."""
    monkeypatch.setattr(sampling, "residual", lambda target_probs, _: target_probs)
    assert sampled_p() < 1e-6


@pytest.mark.slow
def test_a_small_lie_of_the_drafter_is_found() -> None:
    """A total variation of 0.02 in the acceptance rule is seen through the whole engine."""
    assert planted_engine_p(tiny_target(0), 8_000, seed=0) < 1e-3


def good() -> tuple[list[GreedyRun], dict[str, Any]]:
    sampled = {"p_value": 0.4, "planted_p_values": {"function": 0.0, "engine": 1e-9}}
    return [GreedyRun("K=1", 0, 3, 5000, 2000, 40)], sampled


def test_the_verdict_needs_everything() -> None:
    """One failure is enough."""
    runs, sampled = good()
    assert verdict(runs, sampled)["passed"] is True
    assert verdict(runs, sampled)["failed"] == []
    few = verdict([GreedyRun("K=1", 0, 0, 20, 19, 40)], sampled)
    assert few["failed"] == ["rejected must be at least 1000"]
    assert verdict([GreedyRun("K=1", 1, 0, 5000, 2000, 40)], sampled)["passed"] is False
    assert verdict([GreedyRun("K=1", 0, 0, 2000, 1999, 40)], sampled)["passed"] is False
    assert verdict(runs, {**sampled, "p_value": 1e-4})["passed"] is False
    undetected = verdict(runs, {**sampled, "planted_p_values": {"function": 0.0, "engine": 0.2}})
    assert (undetected["passed"], undetected["tv_planted_found"]) == (False, False)


@pytest.mark.slow
def test_the_bench_passes_on_the_bundled_model() -> None:
    """As an operator would run it, on fewer prompts; the result is plain JSON with its origin."""
    result = run(prompts=6, max_tokens=24, samples=8_000)
    assert result["divergences"] == 0
    assert result["p_value"] >= 1e-3
    assert result["tv_planted_found"] is True
    assert {"machine", "version"} <= set(json.loads(json.dumps(result)))


def test_ties_are_told_from_divergences() -> None:
    """Where the two best logits are equal, either token is right; elsewhere only one is."""
    target = target_of()
    embedding = target.model.get_output_embeddings().weight.data
    embedding[1::2] = embedding[0::2]  # every odd token is as good as the even one before it
    (request,) = generate(target, prompts(1), 6, Launch(0))
    twin, other = list(request.output), list(request.output)
    twin[3] ^= 1
    other[3] ^= 2
    assert compare("tie", target, [request], [twin]).ties == 1
    assert compare("tie", target, [request], [twin]).divergences == 0
    assert compare("divergence", target, [request], [other]).divergences == 1
    assert compare("equal", target, [request], [request.output]) == GreedyRun("equal", 0, 0, 0, 0, 5)
