"""What may be believed of an engine before it has taken a step: plain data, from a bundle or data sheets.

A prior holds for a fingerprint. On the very same engine it is a model: its level is believed, and evidence
corrects it cell by cell. Where only the software differs, or where it does not say what it was made for, its
shape is believed and the first step gives the level. On another target or device it is not used at all.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import asdict, replace

from steersman_policies.messages import Fingerprint
from steersman_policies.units import Count, Fraction, Name, Seconds, Segment
from steersman_policies.view import Row, interpolate

KNOWN_DRAFTS = 60.0
"""What the acceptance of a segment is worth where it was measured with this very drafter."""

GUESSED_DRAFTS = 15.0
"""The same where it is not known what it was measured with, and for segments that it does not name."""

_DRAFTS = ("target", "drafter", "drafter_version", "method", "quantisation")
"""What acceptance depends on."""

_HARDWARE = (*_DRAFTS, "device", "tensor_parallel", "pipeline_parallel", "data_parallel")
"""What step times depend on most."""


class WithoutDrafter(Struct, frozen=True):
    """Seconds of a step of an engine launched without any drafter: ``step_s[context][batch]``."""

    batches: tuple[Count, ...]
    contexts: tuple[Count, ...]
    """Mean context tokens of a request; a single 0 where it was not measured."""
    step_s: tuple[Row, ...]

    def __post_init__(self) -> None:
        _check_grid(self.batches, *self.step_s)
        if len(self.contexts) != len(self.step_s) or not self.contexts:
            raise ValueError(f"{len(self.contexts)} contexts, {len(self.step_s)} rows of seconds")

    def tokens_per_s(self, requests: float, mean_context_tokens: float) -> float:
        """Committed by so many requests, one a step each; at the nearest context.

        >>> WithoutDrafter((1, 3), (0,), ((0.1, 0.2),)).tokens_per_s(3.0, 500.0)
        15.0
        """
        distances = [abs(context - mean_context_tokens) for context in self.contexts]
        row = self.step_s[distances.index(min(distances))]
        return requests / max(interpolate(self.batches, row, requests), 1e-9)


class CostPrior(Struct, frozen=True):
    """Seconds of a step."""

    tokens_grid: tuple[Count, ...]
    verify_s: Row
    """Of the target's forward by `tokens_grid`, without context and prefill; its jumps are kept."""
    context_token_s: Seconds
    """Added by each context token of the batch."""
    prefill_token_s: Seconds
    """Added by each prefill token, beyond being a token of the forward."""
    draft_s: tuple[Seconds, Seconds, Seconds, Seconds]
    """Of drafting at all, per request, per draft token of depth, per draft token of each request."""
    other_s: tuple[Seconds, Seconds] = (0.0, 0.0)
    """Of the rest of any step, and per request; zeros where `verify_s` holds it."""
    relative_error: Fraction = 1.0
    """Of the model on what it had not seen."""
    interval: tuple[float, ...] = ()
    """By what factors of the prediction 90 % of the steps last, at least and at most; empty: unknown."""
    without_drafter: WithoutDrafter | None = None
    is_level_known: bool = True
    """Whether seconds are believed as they are, and not only against each other."""

    def __post_init__(self) -> None:
        _check_grid(self.tokens_grid, self.verify_s)
        if len(self.interval) not in (0, 2):
            raise ValueError(f"an interval has two ends, found {len(self.interval)}")

    def step_s(self, tokens: float, context_tokens: float, depth: int, requests: float) -> float:
        """Seconds of a step without prefill."""
        once, per_request, per_depth, per_token = self.draft_s
        draft_s = once + per_request * requests + (per_depth + per_token * requests) * depth
        verify_s = (
            interpolate(self.tokens_grid, self.verify_s, tokens) + self.context_token_s * context_tokens
        )
        return verify_s + (draft_s if depth else 0.0) + self.other_s[0] + self.other_s[1] * requests


class Prior(Struct, frozen=True):
    """What is believed before anything was seen."""

    source: Name
    """Where it comes from, for people."""
    fingerprint: Fingerprint | None = None
    """What it was made for; None or an empty name in it: it does not say."""
    engine_id: Name = ""
    """The engine that it was measured on; empty: any."""
    cost: CostPrior | None = None
    acceptance: dict[Segment, tuple[Fraction, ...]] = {}
    """Accepted / reached by position; `unknown` speaks for all segments without a name in here."""
    coverage: dict[Segment, Fraction] = {}
    drafts: float = KNOWN_DRAFTS
    """What the acceptance of a segment is worth."""


class Chosen(Struct, frozen=True):
    """What of the priors holds for an engine, and why; in `text` for people."""

    prior: Prior | None
    text: str


NOTHING = Chosen(None, "")
"""No prior was given."""


def choose(priors: Sequence[Prior], engine_id: str, fingerprint: Fingerprint) -> Chosen:
    """What holds most for an engine: by what it was made for, then by the engine's name, then by order."""
    found = [(*_fit(prior, fingerprint), prior.engine_id != engine_id) for prior in priors]
    if not found:
        return NOTHING
    return min(found, key=lambda fit: (fit[0], fit[2]))[1]


def _fit(prior: Prior, fingerprint: Fingerprint) -> tuple[int, Chosen]:
    """How far a prior holds (0: it is a model), and what of it."""
    differs = _different(prior.fingerprint, fingerprint, _HARDWARE)
    doubts = differs or _different(prior.fingerprint, fingerprint, Fingerprint.__struct_fields__)
    doubts = doubts or _unsaid(prior.fingerprint)
    if not doubts:
        return 0, Chosen(prior, f"{prior.source}: a model of this very engine")
    if not differs:
        cost = None if prior.cost is None else replace(prior.cost, is_level_known=False)
        weaker = replace(prior, cost=cost, drafts=_worth(prior, fingerprint))
        return 1, Chosen(weaker, f"{prior.source}: a prior only, its level is measured anew: {doubts}")
    if prior.acceptance and not _different(prior.fingerprint, fingerprint, _DRAFTS):
        only = replace(prior, cost=None, drafts=_worth(prior, fingerprint))
        return 2, Chosen(only, f"{prior.source}: its step times are not used, its acceptance is: {doubts}")
    return 3, Chosen(None, f"{prior.source}: not used: {doubts}")


def _check_grid(grid: Sequence[int], *rows: Row) -> None:
    """Raises ValueError where a recording, or whoever made a prior, says what cannot be."""
    if not grid or any(left >= right for left, right in pairwise(grid)):
        raise ValueError(f"a grid must ascend, found {grid}")
    if any(len(row) != len(grid) for row in rows):
        raise ValueError(f"{[len(row) for row in rows]} seconds for a grid of {len(grid)}")


def _worth(prior: Prior, fingerprint: Fingerprint) -> float:
    """What its acceptance is worth: all where it says that it is of this target and drafter."""
    said = prior.fingerprint
    is_same = said is not None and all(
        getattr(said, name) == getattr(fingerprint, name) for name in ("target", "drafter", "method")
    )
    return prior.drafts if is_same else min(prior.drafts, GUESSED_DRAFTS)


def _different(said: Fingerprint | None, found: Fingerprint, names: Iterable[str]) -> str:
    """What contradicts; empty where nothing does."""
    if said is None:
        return ""
    theirs, ours = asdict(said), asdict(found)
    odd = [name for name in names if theirs[name] not in ("", ours[name])]
    return ", ".join(f"made for {name} {theirs[name]!r}, this is {ours[name]!r}" for name in odd)


def _unsaid(said: Fingerprint | None) -> str:
    if said is None:
        return "it does not say what it was made for"
    empty = [name for name, value in asdict(said).items() if value == ""]
    return f"it does not say for which {', '.join(empty)}" if empty else ""
