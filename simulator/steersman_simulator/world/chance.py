"""Chance in a simulated world: streams that depend on numbers only, so that every run repeats."""

from random import Random
from typing import TypeAlias

import numpy as np

from steersman_policies.executor import mix

Chance: TypeAlias = Random
"""A stream of chance. It is made here and handed on; nobody else makes one."""


def stream(seed: int, *words: int) -> Chance:
    """The stream of `seed` and `words`: equal arguments, equal draws, in any process.

    >>> stream(1, 2).random() == stream(1, 2).random(), stream(1, 2).random() == stream(1, 3).random()
    (True, False)
    """
    return Random(mix(seed, *words))  # noqa: S311 - a simulation keeps no secrets


def generator(seed: int, *words: int) -> np.random.Generator:
    """The same for many draws at once.

    >>> bool(generator(1, 2).random() == generator(1, 2).random())
    True
    """
    return np.random.Generator(np.random.PCG64(mix(seed, *words)))
