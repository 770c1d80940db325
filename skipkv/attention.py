"""Attention of new queries over a row's slots, for one layer: by PyTorch's fused kernels, by hand, or by flash-attn.

Query heads that share a KV head are laid side by side as queries of that head, so keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention


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


@dataclass(frozen=True)
class Packing:
    """Where the real entries of a padded [n, width] table lie, for kernels that take rows of different length.

    Attributes:
        index: [total] int64, places of the real entries in the flattened table, row by row.
        starts: [n + 1] int32, where each row starts among them.
        longest: entries of the longest row.
    """

    index: Tensor
    starts: Tensor
    longest: int


def packing(real: Tensor, device: torch.device) -> Packing:
    """The packing of `real` [n, width] bool, a tensor on the host, so that no device is waited for."""
    counts = real.sum(dim=1)
    starts = pad(counts.cumsum(dim=0), (1, 0)).int()
    index = real.flatten().nonzero()[:, 0]
    return Packing(index.to(device), starts.to(device), int(counts.max()))


def attend_packed(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, query_packing: Packing, key_packing: Packing
) -> Tensor:
    """Causal attention through flash-attn's kernel for rows of different length (arXiv:2307.08691).

    Args:
        queries: [n, q_heads, t, head_dim]; keys, values: [n, kv_heads, k, head_dim], oldest first, the new ones last;
            float16 or bfloat16, on a GPU.

    Returns:
        [n, t, q_heads, head_dim], 0 at padding.
    """
    from flash_attn import flash_attn_varlen_func

    def packed(table: Tensor, places: Packing) -> Tensor:
        return table.transpose(1, 2).flatten(0, 1)[places.index]

    n, q_heads, t, head_dim = queries.shape
    out = queries.new_zeros(n * t, q_heads, head_dim)
    out[query_packing.index] = flash_attn_varlen_func(
        packed(queries, query_packing),
        packed(keys, key_packing),
        packed(values, key_packing),
        query_packing.starts,
        key_packing.starts,
        query_packing.longest,
        key_packing.longest,
        softmax_scale=scaling,
        causal=True,
    )
    return out.view(n, t, q_heads, head_dim)
