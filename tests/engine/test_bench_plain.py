"""`bench engine` measures what it says, and sees a drafter that works at K = 0."""

from time import sleep
from typing import Any

import pytest
from tiny_models import target_of

from steersman_engine.bench import plain
from steersman_engine.decode.drafting import Drafting
from steersman_engine.decode.model import TargetModel

PROMPTS = [[1, 2, 3, 4], [5, 6, 7]]


@pytest.fixture
def target() -> TargetModel:
    return target_of()


def test_both_engines_take_the_same_number_of_steps(target: TargetModel) -> None:
    """Two blocks of either kind make a group."""
    found = plain.k0_extra(target, PROMPTS, groups=6)
    assert found.groups == 6
    assert found.low <= found.fraction <= found.high


def test_work_at_k0_is_seen(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: an engine with a drafter that dawdles although nothing is to be drafted."""
    original = Drafting.draft

    def dawdle(self: Drafting, *args: Any, **kwargs: Any) -> Any:
        if self.drafter is not None:
            sleep(0.01)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Drafting, "draft", dawdle)
    assert plain.k0_extra(target, PROMPTS, groups=6).fraction > plain.MARK_FRACTION


def test_the_step_table_has_every_cell(target: TargetModel) -> None:
    """Milliseconds by batch and tokens."""
    table = plain.step_table(target, most=5)
    assert {batch: "".join(row) for batch, row in table.items()} == dict.fromkeys("145", "1259")
    assert all(ms > 0.0 for row in table.values() for ms in row.values())
