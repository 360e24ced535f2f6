import pytest
import torch

from steersman_engine.decode.slots import SlotCache


def filled(lengths: list[int]) -> SlotCache:
    """A cache of one layer in which slot s holds the number s everywhere."""
    slots = SlotCache(max_batch=4, max_len=8)
    like = torch.zeros(1, 2, 1, 3)
    for length in lengths:
        slot = slots.append()
        slots.extend(slot, length)
        keys, values = slots.layer(0, like, like)
        keys[slot], values[slot] = slot, slot + 100
    return slots


def test_freeing_moves_the_last_slot_into_the_gap() -> None:
    """Live slots stay 0 to n-1, and the moved one keeps its tokens and its length."""
    slots = filled([3, 5, 4])
    assert slots.free(0) == 2
    keys, values = slots.layer(0, torch.empty(0), torch.empty(0))
    assert slots.lengths == [4, 5]
    assert keys[0, :, :4].unique().tolist() == [2.0]
    assert values[0, :, :4].unique().tolist() == [102.0]
    assert keys[1, :, :5].unique().tolist() == [1.0]


def test_freeing_the_last_slot_moves_nothing() -> None:
    """There is no gap to fill."""
    slots = filled([3, 5])
    assert slots.free(1) is None
    assert slots.lengths == [3]


def test_a_layer_takes_its_shape_from_the_first_keys() -> None:
    """Heads and head size are learned, batch and length are given."""
    slots = SlotCache(max_batch=2, max_len=5)
    keys, values = slots.layer(7, torch.empty(1, 3, 1, 4), torch.empty(1, 3, 1, 6))
    assert keys.shape == (2, 3, 5, 4)
    assert values.shape == (2, 3, 5, 6)


def test_a_full_cache_refuses() -> None:
    """There are no more slots than asked for."""
    slots = filled([1, 1, 1, 1])
    with pytest.raises(IndexError, match="all 4 are taken"):
        slots.append()


def test_truncation_only_shortens() -> None:
    """A rollback cannot invent tokens."""
    slots = filled([3])
    slots.truncate(0, 2)
    assert slots.lengths == [2]
    with pytest.raises(ValueError, match="cannot cut 2 tokens to 3"):
        slots.truncate(0, 3)


def test_used_fraction_counts_tokens() -> None:
    """Held tokens over all places."""
    assert filled([4, 4]).used_fraction == 8 / 32
