"""Numbers over many answers."""

from __future__ import annotations

from math import sqrt

Z95 = 1.959964


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927), both ends in [0, 1]."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = right / count, Z95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 * sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)
