"""What every eviction policy shares: its options, their checks, and the one method that it must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from skipkv.errors import BadInput

if TYPE_CHECKING:
    from skipkv.cache import Shape


@dataclass(frozen=True)
class Cached:
    """What a policy chooses from: rows whose every slot holds a token. What it does not read is None.

    Attributes:
        keys, values: [batch, kv_heads, slots, head_dim], keys rotated, oldest token first.
        queries: [batch, q_heads, queries_kept, head_dim], rotated; that of position p has place p % queries_kept.
        penalty, attention: [batch, kv_heads, slots] float32, of sentences, and accumulated over all queries so far.
        newest: [batch] int64, original position of the last token.
    """

    keys: Tensor
    queries: Tensor
    values: Tensor | None = None
    penalty: Tensor | None = None
    attention: Tensor | None = None
    newest: Tensor | None = None

    def of(self, rows: Tensor, length: int) -> Cached:
        """Only those rows [n] int64, cut to `length` slots."""

        def cut(table: Tensor | None) -> Tensor | None:
            return None if table is None else table[rows, :, :length]

        newest = None if self.newest is None else self.newest[rows]
        keys, queries = self.keys[rows, :, :length], self.queries[rows]
        return Cached(keys, queries, cut(self.values), cut(self.penalty), cut(self.attention), newest)


@dataclass(frozen=True)
class Policy:
    """Chooses which slots of the cache stay when a row is full.

    Attributes:
        budget: slots that each KV head keeps at a compression; None keeps everything.
        window: the last tokens, which always stay and whose queries judge the others.
    """

    name: ClassVar[str]
    reads_queries: ClassVar[bool] = False  # wants the queries of the window
    reads_values: ClassVar[bool] = False  # wants the cached values, and the newest position
    reads_attention: ClassVar[bool] = False  # wants the attention accumulated over all queries
    reads_sentences: ClassVar[bool] = False  # wants sentence penalties

    budget: int | None = None
    window: int = 8

    def __post_init__(self) -> None:
        if self.window < 1:
            raise BadInput(f"window is {self.window}; it must be at least 1")
        if self.budget is None:
            raise BadInput(f"{self.name} needs a budget: the slots that each head keeps")
        if self.budget <= self.window:
            raise BadInput(f"budget is {self.budget}; it must be above the window of {self.window} tokens")

    def keep(
        self,
        keys: Tensor,
        queries: Tensor,
        *,
        lengths: Tensor | None = None,
        penalty: Tensor | None = None,
        attention: Tensor | None = None,
        values: Tensor | None = None,
        newest: Tensor | None = None,
    ) -> Tensor:
        """The slots to keep.

        Args:
            keys: [batch, kv_heads, slots, head_dim], rotated, oldest token first.
            queries: [batch, q_heads, window, head_dim], rotated, of the last `window` tokens.
            lengths: [batch] int64, occupied slots of each row; all slots where None. A row shorter than the budget
                keeps what it has, and empty slots fill its list.
            penalty: [batch, kv_heads, slots] float32, sentence penalty (SkipKV), 0 where there is none.
            attention: [batch, kv_heads, slots] float32, attention accumulated over all queries so far (H2O).
            values: like the keys; newest: [batch] int64, original position of the last token (scorers of kvpress).

        Returns:
            [batch, kv_heads, budget] int64, ascending.

        Raises:
            BadInput: there are fewer slots than the budget, or the policy lacks an input that it reads.
        """
        batch, kv_heads, slots, _ = keys.shape
        if slots < self.slots_kept:
            raise BadInput(f"{self.name} keeps {self.slots_kept} slots, but only {slots} were given")
        if self.reads_queries and queries.shape[2] != self.queries_kept:
            raise BadInput(f"{self.name} reads {self.queries_kept} queries, but {queries.shape[2]} were given")
        cached = Cached(keys, queries, values, penalty, attention, newest)
        if lengths is None:
            return self.choose(cached)
        # Rows of one length are cut to it and judged together: each is judged on exactly what it would be alone.
        kept = torch.arange(self.slots_kept, device=keys.device).repeat(batch, kv_heads, 1)
        for length in lengths[lengths >= self.slots_kept].unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)
            kept[rows] = self.choose(cached.of(rows, length))
        return kept

    def choose(self, cached: Cached) -> Tensor:
        """The slots to keep, [batch, kv_heads, budget] int64, ascending: what a new policy writes."""
        raise NotImplementedError(f"{type(self).__name__} must define choose()")

    def for_model(self, shape: Shape, rotary: Any) -> Policy:
        """The policy as it runs in a model of that shape and rotary embedding: itself, unless it looks at them."""
        return self

    @property
    def queries_kept(self) -> int:
        """Queries of the last tokens that the cache holds ready: those of the window, where they are read."""
        return self.window if self.reads_queries else 0

    @property
    def slots_kept(self) -> int:
        """The budget as a plain number.

        Raises:
            BadInput: the policy keeps everything.
        """
        if self.budget is None:
            raise BadInput(f"{self.name} keeps everything: it has no budget")
        return self.budget
