"""The plot of a replay."""

from typing import Any

from matplotlib.figure import Figure

_INK, _SOFT = "#1f7a8c", "#8a94a6"


def ratio_figure(result: dict[str, Any]) -> Figure:
    """Each policy's estimated goodput over the recorded one, with its interval; refused ones are named."""
    policies = [*reversed(result["policies"])]
    figure = Figure(figsize=(8.0, 0.5 * len(policies) + 1.3), layout="constrained")
    axes = figure.subplots()
    for row, policy in enumerate(policies):
        if policy["refused"]:
            axes.text(1.0, row, " refused", color=_SOFT, va="center")
            continue
        found = policy["against_recorded"]
        axes.plot([found["low"], found["high"]], [row, row], color=_INK, linewidth=2.0)
        filled = _INK if policy["basis"] != "model" else "white"
        axes.plot([found["ratio"]], [row], "o", color=_INK, markerfacecolor=filled)
    axes.axvline(1.0, color=_SOFT, linewidth=1.0)
    axes.axvline(result["recorded"]["off"]["ratio"], color=_SOFT, linewidth=1.0, linestyle=":")
    axes.set_yticks(range(len(policies)), [policy["policy"] for policy in policies])
    axes.set_ylim(-0.6, len(policies) - 0.4)
    axes.set_xlabel("step goodput over the recorded one, 95 % interval (dotted: off; hollow: model)")
    return figure
