"""V1 and V9 hold, and each fault that they are there for fails them."""

import numpy as np
import pytest
from msgspec.structs import replace
from validate_faults import outside

from steersman_controller.train import survival
from steersman_policies import allocation, candidates
from steersman_policies.view import SegmentBelief, StepCost
from steersman_simulator.acceptance import segments
from steersman_simulator.validate import formulas, hazards, suite
from steersman_simulator.validate.check import Asked

sampling = pytest.importorskip("steersman_engine.decode.sampling")
rejection_rule = pytest.importorskip("steersman_engine.decode.rejection_rule")


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    """The rule of this checkout, whatever is installed."""
    monkeypatch.setattr(formulas, "rejection_rule", lambda: rejection_rule.outcomes)


def test_formulas_hold():
    """V1 passes."""
    assert outside(formulas.CHECK) == []


def test_without_an_engine_v1_says_what_it_left_out(monkeypatch):
    """The rejection rule is the engine's; where none is installed, that is no secret."""
    monkeypatch.setattr(formulas, "rejection_rule", lambda: None)
    result = suite.judge(formulas.CHECK, Asked(), clock=float)
    assert (result.verdict, result.reason[:22]) == ("passed", "no engine is installed")
    assert "rejection rule" in result.reason


def test_acceptance_by_position_holds():
    """V9 passes."""
    assert outside(hazards.CHECK) == []


def test_one_token_more_fails_v1(monkeypatch):
    """A truth that expects one more accepted token is seen."""
    right = segments.expected_tokens
    monkeypatch.setattr(formulas, "expected_tokens", lambda alpha, k: right(alpha, k + 1))
    assert outside(formulas.CHECK)


def test_a_cost_without_k_fails_v1(monkeypatch):
    """A planner that takes drafting to cost the same at every depth is seen."""
    right = StepCost.draft_at
    monkeypatch.setattr(StepCost, "draft_at", lambda self, depth, requests: right(self, 1, requests))
    monkeypatch.setattr(
        allocation.Batch, "_draft_line", lambda self, depth, asked: (float(depth > 0), 0.0, float("inf"))
    )
    assert outside(formulas.CHECK)


def test_stopping_at_the_first_rise_fails_v1(monkeypatch):
    """A planner that does not look beyond the shortest proposals is seen."""
    for name in ("_by_depth", "_uniform"):
        right = getattr(candidates.Menu, name)
        monkeypatch.setattr(candidates.Menu, name, lambda self, right=right: right(self)[:4])
    assert any("best K" in figure.what for figure in outside(formulas.CHECK))


def test_positions_out_of_order_fail_v1(monkeypatch):
    """An allocator that hands out positions segment by segment is seen."""
    right = candidates.Menu._rises

    def by_segment(self):
        return [
            [(segment * 100.0 + k, k, segment, *more) for _, k, segment, *more in rises]
            for rises in right(self)
        ]

    monkeypatch.setattr(candidates.Menu, "_rises", by_segment)
    assert any("free choice" in figure.what for figure in outside(formulas.CHECK))


def test_a_wrong_residual_fails_v1(monkeypatch):
    """Drawing from the target after a rejection, instead of its excess, is seen."""
    monkeypatch.setattr(sampling, "residual", lambda target_probs, draft_probs: target_probs)
    assert {figure.what.split()[0] for figure in outside(formulas.CHECK)} == {"residual", "output"}


def test_accepting_too_easily_fails_v1(monkeypatch):
    """A rule that accepts a little more than min(1, p / q) is seen."""
    right = sampling.rejection_sample

    def eager(target, drafts, counts, uniforms, draft_probs):
        return right(target, drafts, counts, uniforms * 0.99, draft_probs)

    monkeypatch.setattr(rejection_rule, "rejection_sample", eager)
    assert outside(formulas.CHECK)


@pytest.mark.parametrize("where", ["belief", "file", "drafts"])
def test_reading_shares_as_survivals_fails_v9(monkeypatch, where):
    """Taking conditional acceptance for shares of all drafts is seen wherever it is done."""
    if where == "belief":
        monkeypatch.setattr(SegmentBelief, "_chain", lambda self, acceptance: acceptance)
    elif where == "file":
        monkeypatch.setattr(hazards, "tokens_per_step", lambda acceptance, k: 1.0 + sum(acceptance[:k]))
    else:
        right = segments.segment_table

        def of_survival(truth, *rest):
            shares = np.array(truth.acceptance)
            return right(replace(truth, acceptance=tuple(shares / np.append(1.0, shares[:-1]))), *rest)

        monkeypatch.setattr(hazards, "segment_table", of_survival)
    assert outside(hazards.CHECK)


def test_reading_survivals_as_shares_fails_v9(monkeypatch):
    """Chaining what is a survival already is seen."""
    monkeypatch.setattr(survival.Survival, "tokens_per_step", lambda self, k: 2.783328)
    assert outside(hazards.CHECK)
