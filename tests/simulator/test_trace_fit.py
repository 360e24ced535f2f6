"""A truth that is fitted from an exact acceptance trace draws traces that look like it."""

import os
from functools import cache
from pathlib import Path

import pytest

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_policies.acceptance_walk import WalkFacts, WalkTally
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth
from steersman_simulator.acceptance.specdec_bench import read_specdec_bench
from steersman_simulator.acceptance.trace_fit import fit_segment, fit_traces
from steersman_simulator.workload.arrival import Arrival

KINDS = {
    "model": SegmentTruth(1.0, 0.0, (1.0,), (0.65, 0.64, 0.62), 0.3, 0.5, 20.0, 0.33, 0.48),
    "ngram": SegmentTruth(0.7, 0.8, (1.0,), (0.2, 0.75, 0.85), 1.0, 0.8, 16.0, 0.97),
    "short": SegmentTruth(0.8, 0.5, (1.0, 0.7, 0.8), (0.7, 0.6)),
}


def drawn(truth: SegmentTruth, seed: int, requests: int = 120) -> list[AcceptanceRecord]:
    acceptance, out = AcceptanceTruth({"unknown": truth}), []
    for ordinal in range(requests):
        tokens = 150 + 37 * ordinal % 200
        table = acceptance.table(Arrival(0.0, "s", 5, tokens), ordinal, seed, 0.0)
        accepted, offered = table.accepted.tolist(), table.offered.tolist()
        out.append(AcceptanceRecord(ordinal, 5, tokens, tuple(accepted), tuple(offered), "s"))
    return out


@cache
def fitted(kind: str) -> SegmentTruth:
    return fit_segment(drawn(KINDS[kind], 1))


def facts(records: list[AcceptanceRecord], k: int, first: int = 1) -> WalkFacts:
    tally = WalkTally(k, first=first, length_known=False)
    for record in records:
        tally.add(record)
    return tally.facts()


@pytest.mark.parametrize(
    "kind",
    ["ngram", pytest.param("model", marks=pytest.mark.slow), pytest.param("short", marks=pytest.mark.slow)],
)
def test_a_fit_draws_what_it_was_fitted_on(kind: str) -> None:
    """On another seed: tokens per step at every K, autocorrelation, spread of requests, coverage."""
    truth = fitted(kind)
    again, other = drawn(truth, 2, 200), drawn(KINDS[kind], 3, 200)
    for k in (1, 3, 5, 7):
        found, wanted = facts(again, k), facts(other, k)
        assert found.tokens_per_step == pytest.approx(wanted.tokens_per_step, rel=0.05)
        assert found.coverage == pytest.approx(wanted.coverage, abs=0.04)
        assert found.autocorrelation[0] == pytest.approx(wanted.autocorrelation[0], abs=0.06)
        assert found.between_request_share == pytest.approx(wanted.between_request_share, abs=0.06)


def test_independent_drafts_would_not_do() -> None:
    """The check above is able to fail: it sees where agreement and stretches are left out."""
    truth, other = fitted("ngram"), drawn(KINDS["ngram"], 3)
    flat = drawn(
        SegmentTruth(truth.coverage, truth.persistence, (1.0,), truth.acceptance, truth.effect_sd), 2
    )
    assert facts(flat, 1).tokens_per_step < 0.95 * facts(other, 1).tokens_per_step
    assert facts(flat, 3).autocorrelation[0] < facts(other, 3).autocorrelation[0] - 0.15


def test_segments_are_fitted_apart_and_few_requests_are_refused() -> None:
    """A segment of its own where there are enough requests; the rest behaves like all together."""
    records = drawn(KINDS["short"], 1, 30)
    assert list(fit_traces(records).segments) == ["unknown", "s"]
    with pytest.raises(ValueError, match="19 requests, a fit needs 20"):
        fit_traces(records[:19])
    silent = [AcceptanceRecord(n, 1, 9, (0,) * 9, (0,) * 9) for n in range(30)]
    with pytest.raises(ValueError, match="no draft was ever offered"):
        fit_traces(silent)


PUBLIC = Path(os.environ.get("STEERSMAN_PUBLIC_TRACES", "nowhere"))
needs_public = pytest.mark.skipif(
    not (PUBLIC / "combined_cnn.jsonl").is_file(),
    reason="STEERSMAN_PUBLIC_TRACES names no folder with combined_*.jsonl of SpecDecode-Bench/simulator",
)

WALKED = {
    ("gsm8k", "eagle3"): {1: 1.699, 3: 2.391, 5: 2.666, 7: 2.765},
    ("instructcoder", "eagle3"): {1: 1.681, 3: 2.348, 5: 2.625, 7: 2.760},
    ("sharegpt", "eagle3"): {1: 1.661, 3: 2.254, 5: 2.478, 7: 2.582},
    ("cnn", "eagle3"): {1: 1.674, 3: 2.329, 5: 2.578, 7: 2.694},
    ("gsm8k", "ngram"): {3: 1.164, 7: 1.183},
    ("instructcoder", "ngram"): {3: 2.028, 7: 2.448},
    ("sharegpt", "ngram"): {3: 1.395, 7: 1.479},
    ("cnn", "ngram"): {3: 1.334, 7: 1.398},
}
"""Tokens per step by K, as others computed them from the same files."""


@needs_public
@pytest.mark.slow
@pytest.mark.parametrize(("data_set", "drafter"), sorted(WALKED))
def test_public_traces_walk_as_others_walked_them(data_set: str, drafter) -> None:
    """Within 1e-3 at every K."""
    records = list(read_specdec_bench(PUBLIC / f"combined_{data_set}.jsonl", drafter))
    for k, wanted in WALKED[data_set, drafter].items():
        assert facts(records, k, first=0).tokens_per_step == pytest.approx(wanted, abs=1e-3)


@needs_public
@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle3", "ngram"])
@pytest.mark.parametrize("data_set", ["gsm8k", "cnn"])
def test_half_of_the_public_requests_predict_the_other_half(data_set: str, drafter) -> None:
    """Tokens per step within 5 % at every K, autocorrelation and spread as in the other half."""
    records = list(read_specdec_bench(PUBLIC / f"combined_{data_set}.jsonl", drafter))
    truth, others = fit_segment(records[::2]), records[1::2]
    acceptance, again = AcceptanceTruth({"unknown": truth}), []
    for ordinal in range(4 * len(others)):
        tokens = others[ordinal % len(others)].output_tokens
        table = acceptance.table(Arrival(0.0, "s", 5, tokens), ordinal, 9, 0.0)
        again.append(AcceptanceRecord(ordinal, 5, tokens, tuple(table.accepted.tolist())))
    for k in (1, 3, 5, 7):
        found, wanted = facts(again, k), facts(others, k)
        assert found.tokens_per_step == pytest.approx(wanted.tokens_per_step, rel=0.05)
        assert found.autocorrelation[0] == pytest.approx(wanted.autocorrelation[0], abs=0.08)
        assert found.between_request_share == pytest.approx(wanted.between_request_share, abs=0.04)
