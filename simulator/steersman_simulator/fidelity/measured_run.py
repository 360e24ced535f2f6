"""A serving run that was measured request by request, without drafts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.rows import rows
from steersman_simulator.workload.values import Cells

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "scheduled_s", "first_token_s", "last_token_s")


class MeasuredRequest(Struct, frozen=True):
    """One line. `arrival_s` is the client's clock, the other moments the engine's; both begin at 0 with the
    first request."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    scheduled_s: float
    """First put into a step."""
    first_token_s: float
    last_token_s: float
    hash_ids: tuple[int, ...] = ()
    """Of the prompt's blocks, where the file has them: equal leading ids are a shared prefix."""
    hash_block_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Arrival to first token."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        """Arrival to last token."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Between tokens after the first one."""
        return (self.last_token_s - self.first_token_s) / max(self.output_tokens - 1, 1)

    def context_tokens(self, at_s: float) -> float:
        """In the cache at a moment after the first token, if tokens come evenly."""
        span_s = self.last_token_s - self.first_token_s
        done = (at_s - self.first_token_s) / span_s if span_s > 0.0 else 1.0
        return self.input_tokens + done * (self.output_tokens - 1)


def read_run(path: Path, columns: Mapping[str, str]) -> list[MeasuredRequest]:
    """The requests of a file, in order of arrival; `columns` maps our names to the file's.

    `hash_ids` (whole numbers as text) and `hash_block_tokens` are optional.

    Raises ValueError or FileNotFoundError in one line naming file and line.
    """
    cells, found = Cells(path), []
    for row in rows(path, COLUMNS, columns):
        cells.at = row.number
        request = MeasuredRequest(
            hash_ids=cells.ids("hash_ids", row.values.get("hash_ids")),
            hash_block_tokens=cells.tokens("hash_block_tokens", row.values.get("hash_block_tokens") or 0),
            **{
                name: (cells.tokens if name.endswith("tokens") else cells.seconds)(name, row.values[name])
                for name in COLUMNS
            },  # type: ignore[arg-type]
        )
        if request.output_tokens < 1:
            raise cells.error("output_tokens", request.output_tokens, "at least 1")
        if not request.scheduled_s <= request.first_token_s <= request.last_token_s:
            raise cells.error("first_token_s", request.first_token_s, "from scheduled_s to last_token_s")
        if request.ttft_s <= 0.0:
            raise cells.error(
                "first_token_s", request.first_token_s, f"after {request.arrival_s}, the arrival"
            )
        found.append(request)
    if not found:
        raise ValueError(f"{path}: no requests")
    return sorted(found, key=lambda request: request.arrival_s)


def arrivals_of(requests: Sequence[MeasuredRequest]) -> list[Arrival]:
    """The same requests before they were served."""
    start_s = requests[0].arrival_s
    return [
        Arrival(
            at_s=r.arrival_s - start_s,
            segment=UNKNOWN_SEGMENT,
            prompt_tokens=r.input_tokens,
            output_tokens=r.output_tokens,
            hash_ids=r.hash_ids if r.hash_block_tokens else (),
            hash_block_tokens=r.hash_block_tokens,
        )
        for r in requests
    ]
