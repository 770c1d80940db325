"""A scorer of NVIDIA's kvpress as a policy: `kvpress:KeyDiffPress`; with options, `kvpress:SnapKVPress,window_size=8`.

A scorer asks an attention module for the queries of hidden states, and rotates them itself. Here a stand-in hands it
the queries that the cache holds, with their rotation taken back. Keys and queries are turned so that positions count
from the first of these queries; attention knows distances only, so scores are those of the true positions.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached, Policy

if TYPE_CHECKING:
    from skipkv.cache import Shape

PREFIX = "kvpress:"
QUERIES = 256  # as many hidden states as kvpress's own DecodingPress holds
TRIAL = 512  # slots on which a scorer is tried before a model is loaded
STEADY = ("default", "linear", "llama3", "yarn")  # rotations that are the same at every length


class AttentionStandIn:
    """What scorers read of an attention module, where "hidden states" are queries already."""

    def __init__(self, q_heads: int, kv_heads: int, head_dim: int, rotary: Any) -> None:
        self.config, self.head_dim, self.rotary_emb = self, head_dim, rotary
        self.num_attention_heads, self.num_key_value_heads = q_heads, kv_heads
        self.scaling = getattr(rotary, "attention_scaling", 1.0)

    def q_proj(self, queries: Tensor) -> Tensor:
        """The queries as they are."""
        return queries

    def turn(self, vectors: Tensor, steps: Tensor) -> Tensor:
        """Rotates vectors [batch, heads, n, head_dim] by steps [batch, n or 1] int64 positions onwards."""
        cos, sin = (table[:, None] / self.scaling for table in self.rotary_emb(vectors, steps))
        left, right = vectors.chunk(2, dim=-1)
        return vectors * cos + torch.cat([-right, left], dim=-1) * sin


class PlainRotation:
    """Rotary positions of the first Llama, for the trial."""

    def __call__(self, vectors: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = vectors.shape[-1] // 2
        angles = positions[..., None] * 10000.0 ** (-torch.arange(half) / half)
        return torch.cat([angles.cos()] * 2, dim=-1), torch.cat([angles.sin()] * 2, dim=-1)


@lru_cache(maxsize=16)
def scorer(press: str) -> Any:
    """The scorer that `NAME,option=value,…` means.

    Raises:
        BadInput: kvpress is not installed, it has no such scorer, or the options do not fit.
    """
    try:
        import kvpress
    except ImportError as error:
        raise BadInput(f"{PREFIX}{press} needs kvpress: pip install kvpress") from error
    name, *given = press.split(",")
    known = {
        key: found
        for key, found in vars(kvpress).items()
        if isinstance(found, type) and issubclass(found, kvpress.ScorerPress) and found is not kvpress.ScorerPress
    }
    if name not in known:
        raise BadInput(f"kvpress has no scorer '{name}'; it has {', '.join(sorted(known))}")
    try:
        options = {key: ast.literal_eval(value) for key, value in (option.split("=") for option in given)}
        return known[name](**options)
    except (TypeError, ValueError, SyntaxError, AssertionError) as error:
        raise BadInput(f"{PREFIX}{press}: options are NAME,option=value, and {name} says: {error}") from error


def scores(press: Any, attention: AttentionStandIn, cached: Cached, budget: int) -> Tensor:
    """The scorer's scores, [batch, kv_heads, slots], computed in float32."""
    assert cached.values is not None and cached.newest is not None
    _, q_heads, count, head_dim = cached.queries.shape
    place = torch.arange(count, device=cached.keys.device)
    first = cached.newest[:, None] - count + 1
    by_age = ((first + place) % count)[:, None, :, None].expand(-1, q_heads, -1, head_dim)
    queries = attention.turn(cached.queries.float().gather(2, by_age), -(first + place)) / attention.scaling
    keys = attention.turn(cached.keys.float(), -first)
    # The half keeps kvpress's rounding down from evicting one more.
    press = copy.copy(press)
    press.compression_ratio = 1 - (budget + 0.5) / keys.shape[2]
    return press.score(
        attention,
        queries.transpose(1, 2).flatten(2),
        keys,
        cached.values.float(),
        None,
        {"position_embeddings": attention.rotary_emb(keys, place[None])},
    )


@lru_cache(maxsize=64)
def check(press: str, budget: int, queries: int) -> None:
    """Scores random slots once.

    Raises:
        BadInput: the scorer cannot: it works in prefill only, or needs parts that are trained for one model.
    """
    attention, drawn = AttentionStandIn(4, 2, 16, PlainRotation()), torch.Generator().manual_seed(0)
    slots = torch.randn(2, 1, 2, budget + 16, 16, generator=drawn)
    asked = torch.randn(1, 4, queries, 16, generator=drawn)
    cached = Cached(slots[0], asked, slots[1], newest=torch.tensor([budget + 15]))
    try:
        found = scores(scorer(press), attention, cached, budget)
    except Exception as error:  # whatever a scorer that does not fit may raise
        raise BadInput(f"{PREFIX}{press} cannot score {budget} slots while a model decodes: {error}") from error
    if found.shape != slots.shape[1:4]:
        raise BadInput(f"{PREFIX}{press} cannot score while a model decodes: it scores the new tokens only")


@dataclass(frozen=True)
class KVPress(Policy):
    """Keeps the best slots by a scorer of kvpress; the window stays only where the scorer says so.

    Attributes:
        press: the scorer's class, and its options: `NAME,option=value,…`.
        attention: stands for the model's attention modules; `for_model` sets it.
    """

    reads_queries: ClassVar[bool] = True
    reads_values: ClassVar[bool] = True

    press: str = ""
    attention: AttentionStandIn | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.press, min(self.slots_kept, TRIAL), min(self.queries_kept, TRIAL))

    @property
    def name(self) -> str:  # type: ignore[override]
        """As `build` knows it."""
        return PREFIX + self.press

    @property
    def queries_kept(self) -> int:
        """As many as kvpress's own decoding hands a scorer, and no more than the first compression has seen."""
        return min(QUERIES, self.slots_kept)

    def for_model(self, shape: Shape, rotary: Any) -> Policy:
        """The policy with the model's rotation.

        Raises:
            BadInput: the rotation changes with the length, or turns only a part of each head.
        """
        if getattr(rotary, "rope_type", "default") not in STEADY or 2 * len(rotary.inv_freq) != shape.head_dim:
            raise BadInput(f"{self.name} needs rotary positions of one kind ({', '.join(STEADY)}) over whole heads")
        stand_in = AttentionStandIn(shape.q_heads, shape.kv_heads, shape.head_dim, rotary)
        return replace(self, attention=stand_in)

    def choose(self, cached: Cached) -> Tensor:
        assert self.attention is not None, "runs in a model: for_model comes first"
        found = scores(scorer(self.press), self.attention, cached, self.slots_kept)
        return found.topk(self.slots_kept, dim=-1).indices.sort(dim=-1).values
