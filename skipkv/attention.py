"""Attention of new queries over a row's slots, for one layer.

Query heads that share a KV head are laid side by side as queries of that head, so keys and values are never repeated.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def group_heads(queries: Tensor, kv_heads: int) -> Tensor:
    """[n, q_heads, t, head_dim] -> [n, kv_heads, group * t, head_dim]."""
    n, _, _, head_dim = queries.shape
    return queries.reshape(n, kv_heads, -1, head_dim)


def group_mask(mask: Tensor | None, group: int) -> Tensor | None:
    """[n, 1, t, keys] -> [n, 1, group * t, keys]; one query per row needs no copies."""
    return mask if mask is None or mask.shape[2] == 1 else mask.repeat(1, 1, group, 1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax attention through PyTorch's fused kernels.

    Args:
        queries: [n, q_heads, t, head_dim]; keys, values: [n, kv_heads, k, head_dim]; one dtype.
        mask: bool, broadcastable to [n, 1, t, k], True where a key counts; None where all do.

    Returns:
        [n, t, q_heads, head_dim].
    """
    n, q_heads, t, _ = queries.shape
    kv_heads = keys.shape[1]
    out = scaled_dot_product_attention(
        group_heads(queries, kv_heads), keys, values, group_mask(mask, q_heads // kv_heads), scale=scaling
    )
    return out.reshape(n, q_heads, t, -1).transpose(1, 2)


def attend_with_weights(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, real: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by hand, in float32, with the attention that each key received.

    Args:
        real: [n, t] bool; queries at padding do not count in the weights.

    Returns:
        The output [n, t, q_heads, head_dim], and the weights summed over queries and the heads that share a KV head:
        [n, kv_heads, k] float32.
    """
    n, q_heads, t, head_dim = queries.shape
    kv_heads = keys.shape[1]
    logits = (group_heads(queries, kv_heads).float() * scaling) @ keys.float().transpose(-1, -2)
    mask = group_mask(mask, q_heads // kv_heads)
    weights = (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(dim=-1)
    out = (weights.to(values.dtype) @ values).reshape(n, q_heads, t, head_dim).transpose(1, 2)
    received = weights.unflatten(2, (-1, t)) * real[:, None, None, :, None] if t > 1 else weights
    return out, received.flatten(2, -2).sum(dim=2)
