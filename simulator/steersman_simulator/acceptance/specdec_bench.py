"""Reads the acceptance data of SpecDecode-Bench (Liu et al. 2026, arXiv 2601.11580) as acceptance traces.

A file is JSONL with token ids of prompt and output and, per drafter and output position, how many tokens a
step starting there would emit, bonus token included. Its licence is not stated, so none of it is ours
to ship.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from steersman_policies.acceptance_trace import AcceptanceRecord, checked
from steersman_policies.prompt_statistics import statistics_of
from steersman_policies.units import K_LIMIT, UNKNOWN_SEGMENT, Segment

Drafter: TypeAlias = Literal["eagle3", "ngram"]


class _Emitted(Struct, frozen=True):
    acc_len: tuple[Annotated[int, Meta(ge=1, le=K_LIMIT + 1)], ...]


class _Line(Struct, frozen=True):
    id: str | int
    prompt_token_ids: list[int]
    generated_token_ids: list[int]
    acc_eagle: _Emitted
    acc_ngram: _Emitted


def read_specdec_bench(
    path: Path, drafter: Drafter, segment: Segment = UNKNOWN_SEGMENT
) -> Iterator[AcceptanceRecord]:
    """One record per line, in order; what was offered is not told.

    The output ends where the numbers end. Raises OSError, or ValueError naming file and line.
    """
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = decoder.decode(text)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number}: {error}") from None
            emitted = (line.acc_eagle if drafter == "eagle3" else line.acc_ngram).acc_len
            told = statistics_of(line.prompt_token_ids, max_output_tokens=0, temperature=0.0)
            record = AcceptanceRecord(
                request_id=line.id,
                prompt_tokens=len(line.prompt_token_ids),
                output_tokens=len(emitted),
                accepted_by_position=tuple(tokens - 1 for tokens in emitted),
                segment=segment,
                method=drafter,
                distinct_fraction=told.distinct_fraction,
                repeated_fraction=told.repeated_fraction,
            )
            yield checked(record)
