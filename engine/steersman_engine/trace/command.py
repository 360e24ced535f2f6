"""`steersman trace acceptance`: a trace from logged prompts and outputs, and what it amounts to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from steersman_engine.trace.method import Method, record_of
from steersman_engine.trace.pairs import Encode, Pairs
from steersman_policies.acceptance_trace import AcceptanceRecord, write_trace
from steersman_policies.acceptance_walk import WalkTally

METHODS = ("ngram", "draft-model")
MethodName: TypeAlias = Literal["ngram", "draft-model"]

WALKED_K = (1, 3, 5, 7)
SPREAD_K = 3
"""The largest K at which autocorrelation and the share between requests are told."""

Report = Callable[[int], None]
"""Told how many bytes of the file are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for."""

    method: MethodName
    source: Path
    out: Path
    columns: dict[str, str]
    tokenizer: str | None
    """A folder, or `bundled`; needed for text only."""
    target: str
    k_max: int | None
    min_ngram: int
    max_ngram: int
    model: str | None
    device: str | None


def run(settings: Settings, report: Report) -> dict[str, Any]:
    """Write the trace; returns its facts as a JSON tree. Raises ValueError or OSError in one line."""
    method, k = _method(settings)
    pairs = Pairs(settings.source, settings.columns, _encode(settings.tokenizer))
    walks = {walked: WalkTally(walked) for walked in WALKED_K if walked <= k}  # behind k nothing is known
    spread_at_k = max(walked for walked in walks if walked <= SPREAD_K)
    positions = covered = 0

    def records() -> Iterator[AcceptanceRecord]:
        nonlocal positions, covered
        for number, pair in enumerate(pairs, start=1):
            try:
                record = record_of(pair, method, k, settings.target)
            except ValueError as error:
                raise ValueError(f"{settings.source}: request {number}: {error}") from None
            positions += record.output_tokens
            covered += sum(length > 0 for length in record.offered_by_position)
            for walk in walks.values():
                walk.add(record)
            report(pairs.read_bytes)
            yield record

    requests = write_trace(settings.out, records())
    if not requests:
        settings.out.unlink()
        raise ValueError(f"{settings.source}: holds no request")
    spread = walks[spread_at_k].facts()
    return {
        "out": str(settings.out),
        "method": settings.method,
        "drafter": method.drafter,
        "drafter_version": method.drafter_version,
        "k_max": k,
        "requests": requests,
        "positions": positions,
        "coverage": covered / positions if positions else 0.0,
        "tokens_per_step": {str(k): walk.facts().tokens_per_step for k, walk in walks.items()},
        "autocorrelation_lag1": spread.autocorrelation[0],
        "between_request_share": spread.between_request_share,
        "spread_at_k": spread_at_k,
        "ignored_fields": dict(sorted(pairs.ignored.items())),
    }


def _method(settings: Settings) -> tuple[Method, int]:
    if settings.method == "ngram":
        from steersman_engine.trace.ngram import NgramMethod

        return NgramMethod(settings.max_ngram, settings.min_ngram), settings.k_max or 64
    from steersman_engine.trace.draft_model import load_draft_model

    return load_draft_model(settings.model, settings.device), settings.k_max or 8


def _encode(tokenizer: str | None) -> Encode | None:
    if tokenizer is None:
        return None
    from steersman_engine.decode.model import load_tokenizer

    loaded = load_tokenizer(None if tokenizer == "bundled" else tokenizer)

    def encode(text: str, is_prompt: bool) -> list[int]:
        ids: list[int] = loaded.encode(text, add_special_tokens=is_prompt)
        return ids

    return encode


def lines_of(found: dict[str, Any]) -> list[str]:
    """The facts for people."""
    by_k = ", ".join(f"{tokens:.3f} at K={k}" for k, tokens in found["tokens_per_step"].items())
    ignored = ", ".join(f"{name} ({lines} lines)" for name, lines in found["ignored_fields"].items())
    return [
        f"{found['out']}: {found['requests']} requests, {found['positions']} output positions, "
        f"drafts of {found['drafter']} {found['drafter_version']} up to {found['k_max']} tokens",
        f"a draft at {found['coverage']:.1%} of the positions",
        f"tokens per step: {by_k}",
        f"accepted length at K={found['spread_at_k']}: lag-1 autocorrelation within requests "
        f"{found['autocorrelation_lag1']:.2f}, share of variance between requests "
        f"{found['between_request_share']:.2f}",
        *([f"fields that were not used: {ignored}"] if ignored else []),
    ]
