"""The best K by batch and context, read from a bundle's tables."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steersman_controller.train.bundle import Bundle
from steersman_controller.train.survival import ASSUMED, tokens_per_step


def acceptances(bundle: Bundle, group: int) -> dict[str, tuple[float, ...]]:
    """By segment; the group's own where it was measured with it, two assumed ones where nothing is known."""
    known = bundle.manifest.acceptance
    own = "/".join(bundle.manifest.groups[group].group)
    return {own: known[own]} if own in known else known or dict(ASSUMED)


def best_k(bundle: Bundle, group: int, acceptance: Sequence[float]) -> NDArray[np.int64]:
    """[context][batch]: the K with the most tokens per second beside a loaded drafter."""
    card = bundle.manifest.groups[group]
    found: NDArray[np.int64] = np.array(card.ks)[_goodput(bundle, group, acceptance).argmax(axis=-1)]
    return found


def drafter_loses(bundle: Bundle, group: int, acceptance: Sequence[float]) -> NDArray[np.bool_]:
    """[context][batch]: whether even the best K is slower than an engine without any drafter.

    Such an engine may run more requests at once, because it has the drafter's memory for its cache. False
    where no step was measured without a drafter.
    """
    card, batches = bundle.manifest.groups[group], np.array(bundle.manifest.groups[group].batches)
    running = np.minimum(batches, np.inf if card.ceiling is None else card.ceiling)
    bare = np.minimum(
        batches, np.inf if card.ceiling_without_drafter is None else card.ceiling_without_drafter
    )
    loaded = running * _goodput(bundle, group, acceptance).max(axis=-1)
    without: NDArray[np.bool_] = bare / bundle.table(group, "no_drafter_s") > loaded
    return without


def crossover_lines(bundle: Bundle, group: int) -> list[str]:
    """A text table: one line per segment and context, one column per batch size."""
    card = bundle.manifest.groups[group]
    width = max(4, *(len(str(batch)) + 2 for batch in card.batches))
    shown = card.batches if len(card.batches) <= 16 else card.batches[:: len(card.batches) // 16 + 1]
    columns = [card.batches.index(batch) for batch in shown]
    known = acceptances(bundle, group)
    margin = max(30, *map(len, known)) + len(", context 123456")
    lines = ["best K by batch size".ljust(margin + 2) + "".join(f"{batch:>{width}}" for batch in shown)]
    loses = False
    for segment, acceptance in known.items():
        found, worse = best_k(bundle, group, acceptance), drafter_loses(bundle, group, acceptance)
        loses = loses or bool(worse[:, columns].any())
        for context, ks, without in zip(card.mean_contexts, found, worse, strict=True):
            label = segment + (f", context {context}" if context else "")
            cells = (f"{ks[at]}{'-' if without[at] else ''}" for at in columns)
            lines.append(f"  {label:<{margin}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return [*lines, *(["  -: slower than an engine launched without the drafter"] if loses else [])]


def _goodput(bundle: Bundle, group: int, acceptance: Sequence[float]) -> NDArray[np.float64]:
    """[context][batch][K]: tokens per second and running request; 0 for a K below all that were measured."""
    tokens = np.array([tokens_per_step(acceptance, k) for k in bundle.manifest.groups[group].ks])
    measured = np.flatnonzero(bundle.table(group, "steps").any(axis=0))
    # What K = 0 takes cannot be told from steps that all drafted.
    tokens[: measured[0] if len(measured) else 0] = 0.0
    found: NDArray[np.float64] = tokens / bundle.table(group, "step_s")
    return found


def draw(bundle: Bundle, path: Path) -> None:
    """The same as a picture; the file's suffix says which kind. Raises ValueError where it has none."""
    if not path.suffix:
        raise ValueError(f"--plot {path}: the name must end in .png, .svg or .pdf")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = range(len(bundle.manifest.groups))
    most = max(len(acceptances(bundle, group)) for group in groups)
    figure, axes = pyplot.subplots(len(groups), most, squeeze=False, figsize=(4.5 * most, 3.2 * len(groups)))
    for group in groups:
        card = bundle.manifest.groups[group]
        for axis, (segment, acceptance) in zip(axes[group], acceptances(bundle, group).items(), strict=False):
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
