"""The public traces and step cost of SpecDecode-Bench (Liu et al. 2026, arXiv 2601.11580), papers 5.1.

The traces state no licence, so none of them is here: `--public-traces` names the folder that holds them.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from steersman_policies.acceptance_trace import AcceptanceRecord
from steersman_simulator.acceptance.specdec_bench import Drafter, read_specdec_bench
from steersman_simulator.truths.step_work import DraftWork, VerifyWork
from steersman_simulator.validate.check import Asked, Skip
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.chance import Chance

DATA_SETS = ("gsm8k", "instructcoder", "sharegpt", "cnn")

OFFERED_TOKENS = 20
"""As far as the traces tell."""


class H100Steps(Struct, frozen=True):
    """The published fit for Llama-3.1-8B on an H100, vLLM 0.10.1; for `copies` of every request at once.

    Drafting costs the same at every K (it was fitted at K = 3): a known flaw, kept as published. `ngram`:
    drafting is a share of the forward instead.
    """

    copies: int = 1
    fixed_s: float = 5.88590713e-3
    per_token_s: float = 2.10103129e-5
    per_context_token_s: float = 3.92645679e-8
    draft_fixed_s: float = 2.13526175e-3
    per_draft_token_s: float = 8.41429603e-7
    draft_per_context_token_s: float = 2.37768493e-9
    host_s: float = 1.20683946e-3

    def sampler(self, chance: Chance) -> "H100Steps":
        """No chance in it."""
        del chance
        return self

    def verify_s(self, work: VerifyWork) -> float:
        """Linear in tokens and context."""
        tokens, context = self.copies * work.target_tokens, self.copies * work.context_tokens
        return self.fixed_s + self.per_token_s * tokens + self.per_context_token_s * context

    def draft_s(self, work: DraftWork) -> float:
        """All but constant."""
        if not (work.depth and work.requests):
            return 0.0
        context = self.copies * work.context_tokens
        tokens_s = self.per_draft_token_s * (work.depth + 1)
        return self.draft_fixed_s + tokens_s + self.draft_per_context_token_s * context

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """A constant."""
        del decode_requests, committed_tokens
        return self.host_s


def folder_of(asked: Asked) -> Path:
    """The folder that was given. Raises `Skip` where none was, FileNotFoundError where it lacks a file."""
    if asked.public_traces is None:
        raise Skip("no --public-traces DIR: a public trace set that states no licence, so it is not shipped")
    for name in DATA_SETS:
        if not _file(asked.public_traces, name).is_file():
            raise FileNotFoundError(f"--public-traces: no {_file(asked.public_traces, name)}")
    return asked.public_traces


@lru_cache(maxsize=2 * len(DATA_SETS))
def records(folder: Path, name: str, drafter: Drafter) -> tuple[AcceptanceRecord, ...]:
    """A data set, each request with one token more in front.

    The published figures use the first number of a trace for the step after the prefill, which has brought
    a token by then. (By the tokens of the n-gram traces it belongs to the moment before that token.)
    """
    read = read_specdec_bench(_file(folder, name), drafter)
    return tuple(
        replace(r, output_tokens=r.output_tokens + 1, accepted_by_position=(0, *r.accepted_by_position))
        for r in read
    )


def arrivals(traces: Sequence[AcceptanceRecord]) -> list[Arrival]:
    """The requests of these traces, all at once; a draft may reach beyond an end that nobody knew."""
    return [Arrival(0.0, r.segment, r.prompt_tokens, r.output_tokens, stops=True) for r in traces]


def _file(folder: Path, name: str) -> Path:
    return folder / f"combined_{name}.jsonl"
