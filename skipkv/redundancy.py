"""Which sentences repeat each other: pairwise sentence similarity, PSS (SkipKV, section 3.1)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize


def sentence_penalty(embeddings: Tensor, order: Tensor, tau: float, centred: bool = False) -> Tensor:
    """The penalty of each sentence: its largest PSS to a later one, where that is above tau, else 0.

    Args:
        embeddings: [batch, sentences, hidden] float32, of any length.
        order: [batch, sentences] int64, a sentence's number in its row; negative where there is none.
        tau: similarity above which the earlier of two sentences is redundant.
        centred: take the mean embedding of the row's sentences off each of them first.

    Returns:
        [batch, sentences] float32.
    """
    unit, there = normalize(embeddings, dim=-1), (order >= 0)[..., None]
    if centred:
        mean = unit.where(there, 0.0).sum(dim=1, keepdim=True) / there.sum(dim=1, keepdim=True).clamp(min=1)
        unit = normalize(unit - mean, dim=-1)
    similarity = unit @ unit.transpose(-1, -2)
    later = (order[:, None] > order[..., None]) & there
    return similarity.where(later & (similarity > tau), 0.0).amax(dim=-1)
