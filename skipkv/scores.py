"""Token scores over the cached keys of each KV head, shared by the policies.

Every function is batched over rows and heads and computes in float32, whatever the model's dtype. All slots that are
handed in hold a token: `Policy.keep` has cut empty ones away.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize

# Key-to-key similarities held at once: as many as a core's cache holds, or as keep a GPU busy.
SIMILARITIES = {"cpu": 1 << 20, "cuda": 1 << 24}


def importance(keys: Tensor, queries: Tensor, kernel_size: int) -> Tensor:
    """Attention that the window's queries pay to the tokens before the window (SnapKV, eq. 5; R-KV, eq. 2).

    The maximum over the query heads that share a KV head, softmax over the tokens outside the window, mean over the
    window's queries, max-pooled over neighbouring tokens.

    Args:
        keys: [batch, kv_heads, slots, head_dim], rotated.
        queries: [batch, q_heads, window, head_dim], rotated, of the last `window` tokens in any order.
        kernel_size: odd width of the max-pool, in tokens.

    Returns:
        [batch, kv_heads, slots - window] float32.
    """
    batch, kv_heads, slots, head_dim = keys.shape
    window = queries.shape[2]
    grouped = queries.float().view(batch, kv_heads, -1, head_dim)
    older = keys[:, :, : slots - window].float()
    logits = (grouped @ older.transpose(-1, -2)).view(batch, kv_heads, -1, window, slots - window) * head_dim**-0.5
    attention = logits.amax(dim=2).softmax(dim=-1).mean(dim=2)
    return max_pool1d(attention, kernel_size, stride=1, padding=kernel_size // 2)


def redundancy(keys: Tensor, threshold: float = 0.5) -> Tensor:
    """How much a head's cached keys repeat a token's key (R-KV, section 3.2).

    Cosine similarity among the keys with the diagonal at 0; in each row the latest key above `threshold` (the first
    key where there is none) does not count, so the latest of a group of like keys stays; mean over rows; softmax.

    Args:
        keys: [batch, kv_heads, slots, head_dim].

    Returns:
        [batch, kv_heads, slots] float32 that sums to 1 over the slots.
    """
    heads, slots, head_dim = keys.flatten(0, 1).shape
    held = SIMILARITIES.get(keys.device.type, SIMILARITIES["cuda"])
    at_once, lines = max(1, held // slots**2), max(1, min(slots, held // slots))
    index = torch.arange(slots, dtype=torch.float32, device=keys.device)
    total = torch.zeros(heads, slots, dtype=torch.float32, device=keys.device)
    for part, sums in zip(keys.reshape(heads, slots, head_dim).split(at_once), total.split(at_once), strict=True):
        unit = normalize(part.float(), dim=-1)
        for first in range(0, slots, lines):
            similarity = unit[:, first : first + lines] @ unit.transpose(-1, -2)
            similarity.diagonal(offset=first, dim1=-2, dim2=-1).zero_()
            latest = index.where(similarity > threshold, 0.0).amax(dim=-1, keepdim=True).long()
            sums += similarity.scatter_(-1, latest, 0.0).sum(dim=1)
    return (total / slots).softmax(dim=-1).view(keys.shape[:3])


def best_and_window(score: Tensor, budget: int, window: int) -> Tensor:
    """The best-scored of the older slots, then the last `window` slots.

    Args:
        score: [batch, kv_heads, slots - window].

    Returns:
        [batch, kv_heads, budget] int64, ascending.
    """
    older = score.shape[-1]
    best = score.topk(budget - window, dim=-1).indices.sort(dim=-1).values
    latest = torch.arange(older, older + window, device=score.device).expand(*score.shape[:2], window)
    return torch.cat([best, latest], dim=-1)
