"""Pearson's chi-square, for counts against a known distribution and for two samples."""

import torch
from torch import Tensor

MIN_EXPECTED = 5.0
"""Rarer cells are pooled: below this the chi-square distribution is a poor approximation."""


def goodness_p(counts: Tensor, probs: Tensor) -> float:
    """P(a sample of `probs` is at least as far off as `counts`), both (cells).

    >>> round(goodness_p(torch.tensor([48, 52]), torch.tensor([0.5, 0.5])), 3)
    0.689
    """
    counts, probs = counts.double(), probs.double()
    if bool((counts[probs <= 0.0] > 0).any()):
        return 0.0
    expected = probs * (counts.sum() / probs.sum())
    seen, wanted = _pool(counts, expected), _pool(expected, expected)
    statistic = ((seen - wanted) ** 2 / wanted.clamp(min=1e-12)).sum()
    return _survival(statistic, len(seen) - 1)


def two_sample_p(first: Tensor, second: Tensor) -> float:
    """P(two samples of one distribution differ at least as much as these counts), both (cells).

    >>> round(two_sample_p(torch.tensor([30, 70]), torch.tensor([300, 700])), 3)
    1.0
    """
    first, second = first.double(), second.double()
    size_first, size_second = first.sum(), second.sum()
    smaller = torch.minimum(size_first, size_second) / (size_first + size_second)
    scale = (first + second) * smaller
    left, right = _pool(first, scale), _pool(second, scale)
    share = torch.sqrt(size_second / size_first)
    statistic = ((left * share - right / share) ** 2 / (left + right).clamp(min=1e-12)).sum()
    return _survival(statistic, len(left) - 1)


def _pool(values: Tensor, expected: Tensor) -> Tensor:
    """The cells that are expected often enough, and all others as one."""
    enough = expected >= MIN_EXPECTED
    if float(expected[~enough].sum()) <= 0.0:
        return values[enough]
    return torch.cat([values[enough], values[~enough].sum().unsqueeze(0)])


def _survival(statistic: Tensor, degrees: int) -> float:
    if degrees < 1:
        return 1.0
    half = torch.tensor(degrees / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic.double() / 2.0))
