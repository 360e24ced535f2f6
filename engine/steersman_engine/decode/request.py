"""One generation: what was asked for, and how far it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from steersman_policies.prompt_statistics import PromptStatistics

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a request are chosen. Raises ValueError for values out of range."""

    max_tokens: int
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """Repeats an output at the same K in every step. Another K is another draw of the same distribution:
    a draft costs a random number, whether it is accepted or not."""
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the output; they are part of it."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens}, must be at least 1")
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            raise ValueError(f"temperature: {self.temperature}, must be 0 (greedy) to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: {self.top_p}, must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed}, must be 0 to 2**63 - 1")

    @property
    def greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature == 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """State of a request. Belongs to the engine's thread once it is submitted."""

    number: int
    """Ordinal within this boot of the engine."""
    segment: str
    prompt: list[int]
    sampling: Sampling
    arrived_s: float
    on_tokens: Callable[["Request", list[int]], None]
    """Called in the engine's thread with the tokens of a step, and with none at the very end."""

    attributes: dict[str, str] = field(default_factory=dict)
    """Facts about the request by which it may get its segment; never prompt text."""
    statistics: PromptStatistics | None = None
    """The same in numbers."""
    tokens: list[int] = field(init=False)
    """Prompt and output."""
    slot: int = -1
    """Place in the cache; -1 while it waits and after its end."""
    drafts: list[int] = field(default_factory=list)
    """Proposed in the last step, to be verified in this one."""
    draft_probs: torch.Tensor | None = None
    confidence: torch.Tensor | None = None
    """The drafter's own probability of each draft."""
    commanded_k: int = 0
    not_drafted: str = ""
    generator: torch.Generator = field(init=False)
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: int = 0
    """Draft tokens whose acceptance was decided."""
    steps_drafted: int = 0
    cancelled: bool = False
    finish_reason: FinishReason | None = None
    error: str = ""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.generator = torch.Generator().manual_seed(self.sampling.seed)

    @property
    def output(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.prompt) :]

    @property
    def decoding(self) -> bool:
        """Whether the prefill is over: the last token is the anchor of the next step."""
        return len(self.tokens) > len(self.prompt)

    @property
    def left_tokens(self) -> int:
        """How many more may be generated."""
        return len(self.prompt) + self.sampling.max_tokens - len(self.tokens)

    def uniforms(self, count: int) -> list[float]:
        """The next random numbers in [0, 1) of this request."""
        drawn: list[float] = torch.rand(count, generator=self.generator, dtype=torch.float64).tolist()
        return drawn
