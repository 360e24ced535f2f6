"""V2, V3, V7 and V12 hold in small, and each fault that they are there for fails them."""

from collections import deque

import numpy as np
import pytest
from msgspec.structs import replace
from validate_faults import outside

from steersman_controller.belief import belief
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.validate import load, queueing, ratio_trap, tokens_per_step
from steersman_simulator.world import admission, kernels
from steersman_simulator.world.world import World

SMALL = {"V2": 0.05, "V3": 0.25, "V7": 0.2, "V12": 0.1}
CHECKS = {c.number: c for c in (tokens_per_step.CHECK, ratio_trap.CHECK, load.CHECK, queueing.CHECK)}


def failures(number):
    return outside(CHECKS[number], scale=SMALL[number], seed=2)


def plant_acceptance(monkeypatch, change):
    """Drafts are accepted as `change` says of what would be right."""
    right = kernels.draft

    def draft(rows, count, *rest):
        found = right(rows, count, *rest)
        accepted, pending = rows[kernels.ACCEPTABLE, :count], rows[kernels.PENDING, :count]
        accepted[:] = change(np.minimum(accepted, pending), pending)
        return found

    monkeypatch.setattr(kernels, "draft", draft)


@pytest.mark.parametrize("number", sorted(CHECKS))
def test_holds_in_small(number):
    """Without a fault every check passes at the size at which its faults are seen."""
    assert failures(number) == []


def test_one_accepted_token_more_fails_v2(monkeypatch):
    """An engine that accepts a token more than the target would is seen."""
    plant_acceptance(monkeypatch, lambda accepted, pending: accepted + 1)
    assert failures("V2")


def test_a_last_draft_token_never_accepted_fails_v2(monkeypatch):
    """An engine that accepts at most K - 1 is seen."""
    plant_acceptance(monkeypatch, lambda accepted, pending: np.minimum(accepted, pending - 1))
    assert failures("V2")


def test_constant_acceptance_for_positions_fails_v2(monkeypatch):
    """Using the mean acceptance at every position is seen."""
    right = tokens_per_step.by_position

    def flat(by_segment):
        return right({name: (float(np.mean(shares)),) * len(shares) for name, shares in by_segment.items()})

    monkeypatch.setattr(tokens_per_step, "by_position", flat)
    assert {figure.what.split()[0] for figure in failures("V2")} == {"by"}


def test_a_belief_in_what_was_drafted_fails_v3(monkeypatch):
    """A belief that takes everything drafted for reached is seen."""
    right = belief.columns

    def all_reached(reports, k_max):
        found, sane = right(reports, k_max)
        found.reached[:] = found.offered
        return found, sane

    monkeypatch.setattr(belief, "columns", all_reached)
    assert {figure.what.split()[0] for figure in failures("V3")} == {"believed"}


@pytest.mark.slow
def test_a_report_of_shares_fails_v3(monkeypatch):
    """Records whose position acceptance is a share of all drafts are seen."""
    right = ratio_trap.speculation

    def shares(steps):
        found = right(steps)
        for segment in found["segments"].values():
            segment["position_acceptance"] = np.cumprod(segment["position_acceptance"]).tolist()
        return found

    monkeypatch.setattr(ratio_trap, "speculation", shares)
    assert {figure.what.split()[0] for figure in failures("V3")} == {"recorded"}


@pytest.mark.slow
def test_counting_the_bonus_token_fails_v3(monkeypatch):
    """A summary that counts the bonus token as accepted is seen in the table."""
    right = ratio_trap.summary

    def with_bonus(requests, steps, *, duration_s):
        found = right(requests, steps, duration_s=duration_s)
        drafts = sum(segment["drafts"] for segment in found["segments"].values())
        rate = (found["accepted_tokens"] + drafts) / found["drafted_tokens"]
        return found | {"draft_acceptance_rate": rate}

    monkeypatch.setattr(ratio_trap, "summary", with_bonus)
    assert {figure.what.split()[0] for figure in failures("V3")} == {"accepted"}


@pytest.mark.slow
def test_a_cost_without_load_fails_v7(monkeypatch):
    """Steps that take as long whatever is in them do not follow the form."""
    monkeypatch.setattr(ConstantSteps, "verify_s", lambda self, work: self.step_s)
    assert any("R2" in figure.what for figure in failures("V7"))


def test_drafts_verified_for_nothing_fail_v7(monkeypatch):
    """A cost that does not count draft tokens is seen in the constants at K = 3, and only there."""
    monkeypatch.setattr(
        ConstantSteps, "verify_s", lambda self, work: self.step_s + self.per_token_s * work.decode_requests
    )
    assert {figure.what[:5] for figure in failures("V7")} == {"K = 3"}


@pytest.mark.slow
def test_too_few_slots_fail_v7(monkeypatch):
    """A wrong cap on the batch is seen: requests queue where they should share a step."""
    monkeypatch.setattr(load, "SLOTS", 8)
    assert failures("V7")


@pytest.mark.slow
def test_a_slot_left_a_step_late_fails_v12(monkeypatch):
    """Requests that stay for a token too many are seen in the waits."""
    right = World._take
    monkeypatch.setattr(World, "_take", lambda self, arrival: right(self, replace(arrival, output_tokens=2)))
    assert any("mean wait" in figure.what for figure in failures("V12"))


def test_a_slot_too_many_fails_v12(monkeypatch):
    """An engine that admits one request more than it has slots is seen in the waits."""
    right = admission.Admission.chunks
    monkeypatch.setattr(
        admission.Admission,
        "chunks",
        lambda self, now_s, budget, slots: right(self, now_s, budget, slots + 1),
    )
    assert any("mean wait" in figure.what for figure in failures("V12"))


def test_a_skipped_arrival_fails_v12(monkeypatch):
    """A world that loses a request is seen by the count."""
    right = World._take

    def take(self, arrival):
        if self._arrived or getattr(self, "lost", False):
            return right(self, arrival)
        self.lost = True

    monkeypatch.setattr(World, "_take", take)
    assert any("requests served" in figure.what for figure in failures("V12"))


def test_the_last_one_first_fails_v12(monkeypatch):
    """Serving the newest request first is seen in how long the others stay, though the mean is right."""

    class Stack(deque):
        def __getitem__(self, index):
            return super().__getitem__(-1 - index)

        def popleft(self):
            return self.pop()

    right = admission.Admission.__init__

    def init(self, *args, **named):
        right(self, *args, **named)
        self.waiting = Stack()

    monkeypatch.setattr(admission.Admission, "__init__", init)
    assert any("P(stay" in figure.what for figure in failures("V12"))
