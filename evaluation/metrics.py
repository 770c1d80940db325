"""Numbers over many answers: shares with intervals, pass@k, and which differences are real."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy.stats import binomtest

Z95 = 1.959964
DRAWS = 2000  # of a bootstrap


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927), both ends in [0, 1]."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = right / count, Z95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 * sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of a mean, problems drawn anew (Efron 1979)."""
    numbers = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(numbers), (DRAWS, len(numbers)))
    low, high = np.quantile(numbers[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def share_interval(right: Sequence[int], samples: int) -> tuple[float, float]:
    """The 95 % interval of pass@1: Wilson's for one sample of each problem, a bootstrap over problems for more.

    Args:
        right: right samples of each problem.
    """
    if samples == 1:
        return wilson(sum(right), len(right))
    return bootstrap([count / samples for count in right])


def pass_at_k(right: Sequence[int], samples: int, k: int) -> float:
    """The unbiased estimate of pass@k (Chen et al., arXiv:2107.03374, eq. 1): 1 - C(n - c, k) / C(n, k), averaged.

    Raises:
        ValueError: k is above the number of samples.
    """
    if k > samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, not {samples}")

    def one(count: int) -> float:
        left = np.arange(samples - count + 1, samples + 1)
        return 1.0 if samples - count < k else float(1.0 - np.prod(1.0 - k / left))

    return float(np.mean([one(count) for count in right]))


def mcnemar(ours: Sequence[bool], theirs: Sequence[bool]) -> float:
    """p of McNemar's exact test on paired verdicts (McNemar 1947): do the two differ in how often they are right?"""
    only_ours = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    only_theirs = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    if not only_ours + only_theirs:
        return 1.0
    return float(binomtest(only_ours, only_ours + only_theirs).pvalue)
