"""Which sentences repeat each other: pairwise sentence similarity, PSS (SkipKV, section 3.1)."""

from __future__ import annotations

from torch import Tensor


def sentence_penalty(embeddings: Tensor, order: Tensor, tau: float) -> Tensor:
    """The penalty of each sentence: its largest PSS to a later one, where that is above tau, else 0.

    Args:
        embeddings: [batch, sentences, hidden] float32, of unit length.
        order: [batch, sentences] int64, a sentence's number in its row; negative where there is none.
        tau: similarity above which the earlier of two sentences is redundant.

    Returns:
        [batch, sentences] float32.
    """
    similarity = embeddings @ embeddings.transpose(-1, -2)
    later = (order[:, None] > order[..., None]) & (order[..., None] >= 0)
    return similarity.where(later & (similarity > tau), 0.0).amax(dim=-1)
