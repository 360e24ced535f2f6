"""What was found about segments, for people."""

from collections.abc import Mapping

from steersman_controller.trace.segment_facts import SegmentFacts, facts_line
from steersman_controller.train.report import Gain, SegmentsCard
from steersman_policies.segmenter import Segmenter


def facts_lines(facts: Mapping[str, SegmentFacts]) -> list[str]:
    """How the segments of a recording differ."""
    if not facts:
        return []
    return ["segments as recorded:", *(f"  {facts_line(name, each)}" for name, each in facts.items())]


def segments_lines(card: SegmentsCard) -> list[str]:
    """Whether segments pay, and what the tree asks."""
    one = card.log_loss["one"]
    lines = [
        f"segments: {card.requests} requests, {card.tagged} of them tagged, {card.decided:.0f} decided draft "
        "tokens",
        "  held-out log loss per decided draft token, and its fall below that of one segment (95 %):",
        f"  {'one segment':<14}{one:>8.4f}",
        *(
            f"  {name:<14}{card.log_loss[name]:>8.4f}  {_interval(gain)}"
            for name, gain in card.over_one.items()
        ),
    ]
    if card.tree_over_tags is not None:
        lines.append(f"  tags + tree below tags: {_interval(card.tree_over_tags)}")
    lines.append(f"  the tree {'pays: kept' if card.kept else 'does not pay: kept out'}; {card.reason}")
    for leaf in card.leaves:
        where = "; or ".join(leaf.when)
        lines.append(
            f"    {leaf.segment}: acceptance {leaf.acceptance:.3f} +-{leaf.between_sd:.3f}, "
            f"{leaf.requests} requests where {where}"
        )
    for name, other in sorted(card.same_as.items()):
        lines.append(f"  tag {name} cannot be told from {other}: counts as {other}")
    if card.goodput:
        lines.append("  predicted goodput over one K for all, held out (lowest and highest fold):")
    for way, gains in card.goodput.items():
        shown = ", ".join(f"batch {g.batch} {g.mean:+.2%} ({g.low:+.2%} to {g.high:+.2%})" for g in gains)
        same = all(g.low == g.high == 0.0 for g in gains)
        lines.append(f"    {way:<14}{'chooses the same K everywhere' if same else shown}")
    return lines


def segmenter_lines(segmenter: Segmenter | None) -> list[str]:
    """What `steersman serve --segments` would do with this bundle."""
    if segmenter is None:
        return ["no segmenter in this bundle: requests are sorted as before"]
    return [
        f"segmenter version {segmenter.version}: tags, then {len(segmenter.rules)} rules, then "
        + ("no tree" if segmenter.tree is None else f"a tree of {len(segmenter.tree.names)} segments"),
    ]


def _interval(gain: Gain) -> str:
    return f"{gain.mean:+.4f} ({gain.low:+.4f} to {gain.high:+.4f})"
