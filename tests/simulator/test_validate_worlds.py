"""V2, V3, V7 and V12 hold in small, and each fault that they are there for fails them."""

import numpy as np
import pytest
from msgspec.structs import replace
from validate_faults import outside

from steersman_controller.belief import columns
from steersman_simulator.report import summary
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate import load, queueing, ratio_trap, tokens_per_step
from steersman_simulator.world import batch
from steersman_simulator.world.world import World

SMALL = {"V2": 0.05, "V3": 0.2, "V7": 0.15, "V12": 0.04}
CHECKS = {c.number: c for c in (tokens_per_step.CHECK, ratio_trap.CHECK, load.CHECK, queueing.CHECK)}


def failures(number):
    return outside(CHECKS[number], scale=SMALL[number], seed=2)


@pytest.mark.parametrize("number", sorted(CHECKS))
def test_holds_in_small(number):
    """Without a fault every check passes at the size at which its faults are seen."""
    assert failures(number) == []


def test_one_accepted_token_more_fails_v2(monkeypatch):
    """An engine that accepts a token more than the target would is seen."""
    right = batch._offer

    def generous(live, k):
        offered, accepted = right(live, k)
        return offered, min(accepted + 1, offered)

    monkeypatch.setattr(batch, "_offer", generous)
    assert failures("V2")


def test_constant_acceptance_for_positions_fails_v2(monkeypatch):
    """Using the mean acceptance at every position is seen, though the mean is right."""
    right = tokens_per_step.by_position
    monkeypatch.setattr(
        tokens_per_step, "by_position", lambda hazards: right((float(np.mean(hazards)),) * len(hazards))
    )
    assert {figure.what.split()[0] for figure in failures("V2")} == {"by"}


def test_drafts_verified_a_token_short_fail_v2(monkeypatch):
    """An engine that never accepts the last draft token is seen."""
    right = batch._offer
    monkeypatch.setattr(batch, "_offer", lambda live, k: (k, min(right(live, k)[1], k - 1)))
    assert failures("V2")


def test_a_ratio_of_drafted_tokens_fails_v3(monkeypatch):
    """A belief that takes everything drafted for reached is seen, and so is such a report."""
    right = columns._arrays

    def all_reached(reports, k_max):
        found, sane = right(reports, k_max)
        found.marks[1] = found.marks[0]
        return found, sane

    monkeypatch.setattr(columns, "_arrays", all_reached)
    assert {figure.what.split()[0] for figure in failures("V3")} == {"believed"}


def test_a_report_of_shares_fails_v3(monkeypatch):
    """Records whose position acceptance is a share of all drafts are seen."""
    right = summary.position_acceptance
    monkeypatch.setattr(ratio_trap, "position_acceptance", lambda *asked: np.cumprod(right(*asked)).tolist())
    assert {figure.what.split()[0] for figure in failures("V3")} == {"recorded"}


def test_accepting_the_bonus_token_too_fails_v3(monkeypatch):
    """A summary that counts the bonus token as accepted is seen in the table."""
    right = ratio_trap.summary

    def with_bonus(requests, steps, *, duration_s):
        found = right(requests, steps, duration_s=duration_s)
        drafts = sum(segment["drafts"] for segment in found["segments"].values())
        rate = (found["accepted_tokens"] + drafts) / found["drafted_tokens"]
        return found | {"draft_acceptance_rate": rate}

    monkeypatch.setattr(ratio_trap, "summary", with_bonus)
    assert {figure.what.split()[0] for figure in failures("V3")} == {"accepted"}


def test_a_cost_without_load_fails_v7(monkeypatch):
    """Steps that take as long whatever is in them do not follow the form."""
    monkeypatch.setattr(ConstantSteps, "verify_s", lambda self, work: self.step_s)
    assert any("R2" in figure.what for figure in failures("V7"))


def test_drafts_verified_for_nothing_fail_v7(monkeypatch):
    """A cost that does not count draft tokens is seen in the constants at K = 3."""
    monkeypatch.setattr(
        ConstantSteps, "verify_s", lambda self, work: self.step_s + self.per_token_s * work.decode_requests
    )
    assert {figure.what[:5] for figure in failures("V7")} == {"K = 3"}


def test_a_wrong_cap_on_the_batch_fails_v7(monkeypatch):
    """An engine with fewer slots than it has is seen: requests queue where they should share a step."""
    monkeypatch.setattr(load, "SLOTS", 8)
    assert failures("V7")


def test_a_slot_that_leaks_fails_v12(monkeypatch):
    """A slot that is free a step too late is seen in the waits."""
    right = batch.Batch.commit

    def late(self, forward, now_s):
        committed = right(self, forward, now_s)
        before = replace(self.shape, max_batch=1)
        self.shape = replace(before, max_batch=0) if committed.finished and self.waiting else before
        return committed

    right_compose = batch.Batch.compose

    def compose(self, now_s):
        forward = right_compose(self, now_s)
        self.shape = replace(self.shape, max_batch=1)
        return forward

    monkeypatch.setattr(batch.Batch, "commit", late)
    monkeypatch.setattr(batch.Batch, "compose", compose)
    assert any("mean wait" in figure.what for figure in failures("V12"))


def test_a_skipped_arrival_fails_v12(monkeypatch):
    """A world that loses a request is seen by the count."""
    right = World._arrive

    def some(self, arrivals):
        self._to_come -= 1
        return right(self, arrivals[:-1])

    monkeypatch.setattr(World, "_arrive", some)
    assert any("requests served" in figure.what for figure in failures("V12"))


def test_the_last_one_first_fails_v12(monkeypatch):
    """Serving the newest request first is seen in how long the others stay, though the mean is right."""

    class Stack(batch.deque):
        def popleft(self):
            return self.pop()

    right = batch.Batch.__init__

    def init(self, *args, **named):
        right(self, *args, **named)
        self.waiting = Stack()

    monkeypatch.setattr(batch.Batch, "__init__", init)
    assert any("P(stay" in figure.what for figure in failures("V12"))
