"""Noise on step seconds: one factor a step, on all of its parts, with a memory.

The factor is log-normal with mean 1, and its logarithm a first-order autoregressive process: a step that
is slow says that the next one will be, too.
"""

from math import exp, log, sqrt

from msgspec import Struct

from steersman_simulator.truths.step_work import DraftWork, StepSeconds, Truth, VerifyWork
from steersman_simulator.world.chance import Chance


class Noise(Struct, frozen=True, forbid_unknown_fields=True):
    """How much, and for how long."""

    relative_sd: float = 0.0
    """Standard deviation of a step's seconds over their mean."""
    autocorrelation: float = 0.0
    """Of the factor's logarithm, from one step to the next."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.relative_sd <= 10.0:
            raise ValueError(f"noise: relative_sd is {self.relative_sd}, allowed is 0 to 10")
        if not 0.0 <= self.autocorrelation < 1.0:
            raise ValueError(f"noise: autocorrelation is {self.autocorrelation}, allowed is 0 to below 1")

    @classmethod
    def of_log_sd(cls, log_sd: float, autocorrelation: float = 0.0) -> "Noise":
        """From the standard deviation of the factor's logarithm.

        >>> round(Noise.of_log_sd(Noise(0.3).log_sd).relative_sd, 9)
        0.3
        """
        return cls(sqrt(exp(log_sd**2) - 1.0), autocorrelation)

    @property
    def log_sd(self) -> float:
        """Standard deviation of the factor's logarithm."""
        return sqrt(log(1.0 + self.relative_sd**2))


class NoisyTruth(Struct, frozen=True):
    """The seconds of `truth`, times noise."""

    truth: Truth
    noise: Noise

    def sampler(self, chance: Chance) -> StepSeconds:
        """One stream; the truth itself where the noise is none."""
        seconds = self.truth.sampler(chance)
        return NoisySeconds(seconds, self.noise, chance) if self.noise.relative_sd else seconds


class NoisySeconds:
    """One stream. The factor moves on when a step ends, that is with `other_s`."""

    def __init__(self, seconds: StepSeconds, noise: Noise, chance: Chance) -> None:
        self._seconds = seconds
        self._chance = chance
        self._sd, self._memory = noise.log_sd, noise.autocorrelation
        self._fresh = self._sd * sqrt(1.0 - self._memory**2)
        self._log = self._sd * chance.gauss(0.0, 1.0)
        self._factor = 1.0
        self._set()

    def verify_s(self, work: VerifyWork) -> float:
        """The target's forward."""
        return self._factor * self._seconds.verify_s(work)

    def draft_s(self, work: DraftWork) -> float:
        """Drafting."""
        return self._factor * self._seconds.draft_s(work)

    def other_s(self, *, decode_requests: int, committed_tokens: int) -> float:
        """Everything else; ends the step."""
        seconds = self._seconds.other_s(decode_requests=decode_requests, committed_tokens=committed_tokens)
        seconds *= self._factor
        self._log = self._memory * self._log + self._fresh * self._chance.gauss(0.0, 1.0)
        self._set()
        return seconds

    def _set(self) -> None:
        self._factor = exp(self._log - self._sd**2 / 2.0)
