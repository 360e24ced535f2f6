"""Which prompts tune and which compare: none does both."""

from collections.abc import Sequence

from msgspec import Struct

from steersman_simulator.demo.workload import WorkItem

EVERY = 3


class Split(Struct, frozen=True):
    """A workload in two parts, each in file order."""

    sweep: tuple[WorkItem, ...]
    arms: tuple[WorkItem, ...]


def split(items: Sequence[WorkItem]) -> Split:
    """Every third request, counted through the segments one after the other, so that the mixes agree.

    Raises ValueError where there are too few.

    >>> found = split([WorkItem(prompt="x", segment=s) for s in ("a", "b", "a", "b", "a", "b")])
    >>> [item.segment for item in found.sweep], len(found.arms)
    (['a', 'b'], 4)
    """
    if len(items) < EVERY:
        raise ValueError(
            f"--workload: {len(items)} requests; at least {EVERY} are needed, "
            "since those that tune vLLM's table are not used to compare"
        )
    by_segment = sorted(range(len(items)), key=lambda place: items[place].segment or "")
    chosen = set(by_segment[EVERY - 1 :: EVERY])
    return Split(
        sweep=tuple(item for place, item in enumerate(items) if place in chosen),
        arms=tuple(item for place, item in enumerate(items) if place not in chosen),
    )
