"""The best K by batch and context, read from a bundle's tables."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman_controller.train.bundle import Bundle
from steersman_controller.train.survival import ASSUMED, tokens_per_step


def acceptances(bundle: Bundle) -> dict[str, tuple[float, ...]]:
    """By segment; two assumed ones where the bundle knows none."""
    return bundle.manifest.acceptance or dict(ASSUMED)


def best_k(bundle: Bundle, group: int, acceptance: Sequence[float]) -> NDArray[np.int64]:
    """[context][batch]: the K with the most tokens per second beside a loaded drafter."""
    tokens = np.array([tokens_per_step(acceptance, k) for k in bundle.manifest.groups[group].ks])
    goodput = tokens / bundle.table(group, "step_s")
    found: NDArray[np.int64] = np.array(bundle.manifest.groups[group].ks)[goodput.argmax(axis=-1)]
    return found


def crossover_lines(bundle: Bundle, group: int) -> list[str]:
    """A text table: one line per segment and context, one column per batch size."""
    card = bundle.manifest.groups[group]
    width = max(4, *(len(str(batch)) + 1 for batch in card.batches))
    shown = card.batches if len(card.batches) <= 16 else card.batches[:: len(card.batches) // 16 + 1]
    columns = [card.batches.index(batch) for batch in shown]
    lines = ["best K by batch size".ljust(34) + "".join(f"{batch:>{width}}" for batch in shown)]
    for segment, acceptance in acceptances(bundle).items():
        table = best_k(bundle, group, acceptance)
        for context, row in zip(card.mean_contexts, table, strict=True):
            label = segment + (f", context {context}" if context else "")
            lines.append(f"  {label:<32}" + "".join(f"{row[column]:>{width}}" for column in columns))
    return lines


def draw(bundle: Bundle, path: Path) -> None:
    """The same as a picture; the file's suffix says which kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups, segments = range(len(bundle.manifest.groups)), acceptances(bundle)
    figure, axes = pyplot.subplots(
        len(groups), len(segments), squeeze=False, figsize=(4.5 * len(segments), 3.2 * len(groups))
    )
    for group in groups:
        card = bundle.manifest.groups[group]
        for axis, (segment, acceptance) in zip(axes[group], segments.items(), strict=True):
            for context, row in zip(card.mean_contexts, best_k(bundle, group, acceptance), strict=True):
                axis.step(card.batches, row, where="mid", label=f"context {context}" if context else None)
            axis.set(xscale="log", xlabel="batch size", ylabel="best K", ylim=(-0.3, max(card.ks) + 0.3))
            axis.set_title(" ".join([*card.group, segment]), fontsize=8)
            if len(card.mean_contexts) > 1:
                axis.legend(fontsize=7)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ValueError(f"--plot {path}: {error}") from None
    finally:
        pyplot.close(figure)
