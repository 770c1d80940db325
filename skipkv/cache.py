"""The cache with a budget: every row's keys and values in slots that are allocated once and written in place.

One forward pass goes through it as `begin` (where do the tokens go), per layer `SlotLayer.update` and `after_attention`
(write, and note what the policy reads), `observe` (sentences), and `finish` (compress the rows whose slots are full).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from skipkv.attention import Packing, packing
from skipkv.policies import Policy
from skipkv.sentences import SentenceTracker

GROWTH = 128  # slots by which a cache without a budget grows
COMPRESSED_AT_ONCE = 1 << 22  # numbers of keys that are copied at once while rows are compressed


@dataclass(frozen=True)
class Shape:
    """What the cache must know of a model. `devices` has one entry per layer."""

    kv_heads: int
    q_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype
    devices: tuple[torch.device, ...]


@dataclass
class Span:
    """The tokens of one forward pass and where they go.

    Attributes:
        rows: [n] int64, the rows that they belong to.
        tokens, positions, real: [n, t]; token ids, original positions, False at padding.
        prompt: whether the tokens are the prompt's; the prompt has no sentences.
        held: slots to attend to before the new tokens are added, at most, of any of the rows.
        slot: [n] int64, the slot of the new token; None unless every row gets exactly one.
        mask: bool, broadcastable to [n, heads, t, keys]; None when every key counts.
        order: [n, keys] int64, the columns that hold a token, oldest first; None where `slot` is set.
        lengths: [n] int64, tokens of each row after this pass, before compression, on the host.
        room: [n] int64, tokens that each row may keep uncompressed after this pass, on the host.
    """

    rows: Tensor
    tokens: Tensor
    positions: Tensor
    real: Tensor
    prompt: bool
    held: int
    slot: Tensor | None
    mask: Tensor | None
    order: Tensor | None
    lengths: Tensor
    room: Tensor

    @cached_property
    def query_packing(self) -> Packing:
        """Where the pass's real tokens lie among [n, t]."""
        return packing(self.real.cpu() if self.slot is None else torch.ones(self.real.shape).bool(), self.rows.device)

    @cached_property
    def key_packing(self) -> Packing:
        """Where the tokens that attention runs over lie, once they are in order: in front."""
        width = self.held + 1 if self.order is None else self.order.shape[1]
        return packing(torch.arange(width) < self.lengths[:, None], self.rows.device)


class Slab:
    """The slots of all layers that live on one device.

    Attributes:
        keys, values: [layers, rows, kv_heads, slots, head_dim], in the model's dtype.
        positions: [layers, rows, kv_heads, slots] int32, the original position of the token in each slot.
        queries: [layers, rows, q_heads, queries_kept, head_dim], a ring of the last tokens' queries, where read.
        attention: [layers, rows, kv_heads, slots] float32, accumulated over queries, where the policy reads it.
    """

    def __init__(self, policy: Policy, shape: Shape, layers: int, rows: int, slots: int, device: torch.device) -> None:
        heads = (layers, rows, shape.kv_heads)
        self.keys = torch.zeros(*heads, slots, shape.head_dim, dtype=shape.dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.positions = torch.zeros(*heads, slots, dtype=torch.int32, device=device)
        self.queries = torch.zeros(
            layers, rows, shape.q_heads, policy.queries_kept, shape.head_dim, dtype=shape.dtype, device=device
        )
        self.attention = torch.zeros(*heads, slots if policy.reads_attention else 0, device=device)

    def grow(self, slots: int) -> None:
        """Adds empty slots up to `slots`; only a cache without a budget grows."""
        more = slots - self.keys.shape[3]
        for name in ("keys", "values", "positions"):
            table = getattr(self, name)
            empty = table.new_zeros(*table.shape[:3], more, *table.shape[4:])
            setattr(self, name, torch.cat([table, empty], dim=3))


class SlotLayer(CacheLayerMixin):
    """One layer's slots: what transformers' attention modules call `update` on."""

    is_sliding = False

    def __init__(self, cache: BudgetedCache, slab: Slab, index: int) -> None:
        super().__init__()
        self.cache, self.slab, self.index = cache, slab, index
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the cache allocates all layers together."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Takes the new keys and values [n, kv_heads, t, head_dim]; returns all that attention runs over.

        With one token per row they are written into their slots, and the slots are returned. Otherwise the rows' slots
        and the new ones are returned side by side, and `after_attention` writes them.
        """
        span, keys, values = self.cache.span, self.slab.keys[self.index], self.slab.values[self.index]
        if span.slot is not None:
            keys[span.rows, :, span.slot] = key_states[:, :, 0].detach()
            values[span.rows, :, span.slot] = value_states[:, :, 0].detach()
            return keys[:, :, : span.held + 1], values[:, :, : span.held + 1]
        if span.held == 0:
            return key_states, value_states
        held_keys, held_values = keys[span.rows, :, : span.held], values[span.rows, :, : span.held]
        return torch.cat([held_keys, key_states], dim=2), torch.cat([held_values, value_states], dim=2)

    @torch.no_grad()
    def after_attention(self, queries: Tensor, keys: Tensor, values: Tensor, weights: Tensor | None) -> None:
        """Notes what the policy reads, and writes the tokens of a pass that has more than one per row.

        Args:
            queries: [n, q_heads, t, head_dim], rotated.
            keys, values: [n, kv_heads, k, head_dim], what `update` returned.
            weights: [n, kv_heads, k] float32, attention summed over the pass's queries; None unless it is read.
        """
        span, slab = self.cache.span, self.slab
        if slab.queries.shape[3]:
            self._note_queries(queries)
        if span.slot is None:
            self._write(keys, values, weights)
        elif weights is not None:
            slab.attention[self.index, :, :, : weights.shape[-1]] += weights

    def _note_queries(self, queries: Tensor) -> None:
        """Puts the queries of the last tokens into the ring: the query at position p has place p % window."""
        span, ring = self.cache.span, self.slab.queries[self.index]
        window = ring.shape[2]
        if span.slot is not None:
            ring[span.rows, :, span.positions[:, 0] % window] = queries[:, :, 0]
            return
        last = span.positions.where(span.real, -1).amax(dim=1, keepdim=True)
        wanted = last - (last - torch.arange(window, device=last.device)) % window
        found = (span.positions[:, None] == wanted[..., None]) & span.real[:, None]
        taken = queries.gather(
            2, found.int().argmax(dim=2)[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[3])
        )
        ring[span.rows] = taken.where(found.any(dim=2)[:, None, :, None], ring[span.rows])

    def _write(self, keys: Tensor, values: Tensor, weights: Tensor | None) -> None:
        """Writes the rows' tokens to the front of their slots; rows that would not fit are compressed first."""
        cache, slab, span = self.cache, self.slab, self.cache.span
        assert span.order is not None
        tables = [(slab.keys[self.index], keys), (slab.values[self.index], values)]
        positions = span.positions.int()[:, None].expand(-1, keys.shape[1], -1)
        if span.held:
            positions = torch.cat([slab.positions[self.index, span.rows, :, : span.held], positions], dim=2)
        tables.append((slab.positions[self.index], positions))
        if weights is not None:
            weights[..., : span.held] += slab.attention[self.index, span.rows, :, : span.held]
            tables.append((slab.attention[self.index], weights))
        order = span.order[:, None].expand(-1, keys.shape[1], -1)
        packed = [take(table, order) for _, table in tables]
        fits = span.lengths <= span.room
        for (slots, _), table in zip(tables, packed, strict=True):
            rows, width = span.rows[fits.to(span.rows.device)], min(table.shape[2], cache.slots)
            slots[rows, :, :width] = table[fits, :, :width]
        if not fits.all():
            self._write_compressed(tables, packed, ~fits)

    def _write_compressed(self, tables: list[tuple[Tensor, Tensor]], packed: list[Tensor], over: Tensor) -> None:
        """Writes what the policy keeps of rows that have more tokens than slots; `over` [n] bool picks them."""
        cache, span, policy = self.cache, self.cache.span, self.cache.policy
        rows = span.rows[over.to(span.rows.device)]
        keys, values, positions, *attention = (table[over] for table in packed)
        kept = policy.keep(
            keys,
            self.slab.queries[self.index, rows],
            lengths=span.lengths[over].to(keys.device),
            penalty=cache.penalty(rows, positions[None])[0] if policy.reads_sentences else None,
            attention=attention[0] if attention else None,
            values=values if policy.reads_values else None,
            newest=cache.newest(rows) if policy.reads_values else None,
        )
        for (slots, _), table in zip(tables, packed, strict=True):
            slots[rows, :, : policy.slots_kept] = take(table[over], kept)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Sizes for transformers' own masks, which are not used."""
        return self.cache.columns + int(query_length), 0

    def get_seq_length(self) -> int:
        """Columns seen, padding included: what `generate` counts in."""
        return self.cache.columns

    def get_max_length(self) -> int:
        """No maximum: rows are compressed when their slots are full."""
        return -1

    def get_max_cache_shape(self) -> int:
        """`get_max_length` by its older name."""
        return -1


def take(table: Tensor, slots: Tensor) -> Tensor:
    """Picks slots along the third axis: table [n, heads, s, ...], slots [n, heads, k] -> [n, heads, k, ...]."""
    return table.gather(2, slots.reshape(*slots.shape, *[1] * (table.dim() - 3)).expand(*slots.shape, *table.shape[3:]))


class BudgetedCache(Cache):
    """The KV cache of one batch: `rows` x kv_heads x (budget + interval) slots per layer, allocated at once.

    A row whose slots are full is compressed to the budget. Everything that decides over a row is the row's own: its
    length, its positions, its sentences. Without a budget (FullKV) the slots grow with the longest row.

    Args:
        policy: chooses what stays.
        shape: the model's.
        rows: sequences held.
        interval: tokens that a row writes between two compressions.
        delimiters: ids of tokens that end a sentence, for policies that read sentences.
    """

    def __init__(
        self, policy: Policy, shape: Shape, rows: int, *, interval: int = 128, delimiters: Iterable[int] = ()
    ) -> None:
        self.policy, self.interval, self.rows = policy, interval, rows
        self.slots = GROWTH if policy.budget is None else policy.budget + interval
        self.slabs: list[Slab] = []
        layers: list[SlotLayer] = []
        for device in dict.fromkeys(shape.devices):
            count = shape.devices.count(device)
            self.slabs.append(Slab(policy, shape, count, rows, self.slots, device))
        counted = dict.fromkeys(shape.devices, 0)
        order = list(counted)
        for device in shape.devices:
            layers.append(SlotLayer(self, self.slabs[order.index(device)], counted[device]))
            counted[device] += 1
        super().__init__(layers=layers)
        home = shape.devices[-1]
        self.tracker: SentenceTracker | None = None
        if policy.reads_sentences:
            alike = (policy.tau, policy.centred)  # type: ignore[attr-defined]
            self.tracker = SentenceTracker(rows, shape.hidden, delimiters, home, *alike)
        self.home = home
        self.all_rows = torch.arange(rows, device=home)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=home)  # occupied slots
        self.seen = torch.zeros(rows, dtype=torch.int64, device=home)  # tokens taken in: the next position
        # What the host knows without asking the device: lengths and positions follow from counting.
        self.host_lengths = torch.zeros(rows, dtype=torch.int64)
        self.host_seen = torch.zeros(rows, dtype=torch.int64)
        self.columns = 0
        self.compressions = 0
        self.peak_kv_bytes = self.kv_bytes()
        self.constant_shapes = False  # every step attends over all slots, so that it can be compiled once
        self._selected: tuple[Tensor, bool, Tensor] | None = None
        self.span: Span

    # -- one forward pass ----------------------------------------------------------------------------------------------

    def select(self, rows: Sequence[int], *, prompt: bool, more: Sequence[bool] | None = None) -> None:
        """Says that the next pass holds these rows only, and whether its tokens are their prompts'.

        A row of which `more` of the prompt is to come is compressed to the budget right after the pass, so that a long
        prompt never needs more than budget + chunk slots.
        """
        unfinished = torch.zeros(len(rows), dtype=torch.bool) if more is None else torch.tensor(list(more))
        self._selected = (torch.tensor(list(rows), device=self.home), prompt, unfinished)

    def clear(self, rows: Sequence[int]) -> None:
        """Empties rows for new requests."""
        host = torch.tensor(list(rows))
        index = host.to(self.home)
        self.lengths[index] = 0
        self.seen[index] = 0
        self.host_lengths[host] = 0
        self.host_seen[host] = 0
        if self.tracker:
            self.tracker.clear(index)
        for slab in self.slabs:
            slab.attention[:, index.to(slab.attention.device)] = 0.0

    @torch.no_grad()
    def begin(self, tokens: Tensor, real: Tensor | None) -> Span:
        """Places the tokens of the coming forward pass.

        Args:
            tokens: [n, t] int64, of the selected rows, or of all.
            real: [n, t] bool, False at padding, on either side; all real where None.
        """
        count = tokens.shape[1]
        if self._selected is None and count == 1 and self.columns:
            self.span = self._begin_step(tokens)
        else:
            if self._selected is None:
                self.select(range(self.rows), prompt=self.columns == 0)
            assert self._selected is not None
            self.span = self._begin_chunk(*self._selected, tokens, real)
            self._selected = None
        self.columns += count
        if self.tracker:
            self.tracker.reserve(int(self.host_seen.max()))
        return self.span

    def _begin_step(self, tokens: Tensor) -> Span:
        """Every row gets one token: it goes to the row's next slot."""
        held = int(self.host_lengths.max())
        alike = held == int(self.host_lengths.min())
        self._reserve(held + 1)
        if self.constant_shapes:
            held, alike = self.slots - 1, False
        slot, positions = self.lengths.clone(), self.seen[:, None].clone()
        for slab in self.slabs:
            place = slot.to(slab.positions.device)
            slab.positions[:, self.all_rows.to(place.device), :, place] = positions.int().to(place.device)[:, None]
        mask = None if alike else (torch.arange(held + 1, device=self.home) <= slot[:, None])[:, None, None]
        self.lengths += 1
        self.seen += 1
        self.host_lengths += 1
        self.host_seen += 1
        real = torch.ones_like(tokens, dtype=torch.bool)
        lengths = self.host_lengths
        return Span(self.all_rows, tokens, positions, real, False, held, slot, mask, None, lengths, lengths)

    def _begin_chunk(self, rows: Tensor, prompt: bool, unfinished: Tensor, tokens: Tensor, real: Tensor | None) -> Span:
        """Rows get any number of tokens: each row's real tokens follow its slots, in order."""
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real.bool()
        added, host_rows = real.sum(dim=1), rows.cpu()
        host_added = added.cpu()
        held = int(self.host_lengths[host_rows].max())
        position = self.seen[rows, None] + real.cumsum(dim=1) - 1
        columns = torch.cat([torch.arange(held, device=self.home) < self.lengths[rows, None], real], dim=1)
        lengths = self.host_lengths[host_rows] + host_added
        order = (~columns).int().argsort(dim=1, stable=True)[:, : int(lengths.max())]
        index = torch.arange(tokens.shape[1], device=self.home)
        causal = index <= index[:, None]
        # Padding attends to itself, so that no query is without a key; nothing reads what comes of it.
        new = (causal & real[:, None]) | torch.eye(len(index), dtype=torch.bool, device=self.home)
        old = columns[:, None, :held].expand(-1, len(index), -1)
        mask = torch.cat([old, new], dim=2)[:, None]
        self.seen[rows] += added
        self.host_seen[host_rows] += host_added
        if self.policy.budget is None:
            self._reserve(int(lengths.max()))
        budget = torch.tensor(self.policy.budget or self.slots)
        room = budget.where(unfinished, self.slots)
        after = lengths.where(lengths <= room, budget)
        self.host_lengths[host_rows] = after
        self.lengths[rows] = after.to(self.home)
        return Span(rows, tokens, position.clamp(min=0), real, prompt, held, None, mask, order, lengths, room)

    @torch.no_grad()
    def observe(self, hidden: Tensor) -> None:
        """Shows the tracker the final hidden states [n, t, hidden] of the pass, after the last norm."""
        span = self.span
        if self.tracker and not span.prompt:
            self.tracker.add(span.rows, span.tokens, span.positions, hidden, span.real)

    @torch.no_grad()
    def finish(self) -> None:
        """Ends the pass: compresses the rows whose slots are full."""
        if self.policy.budget is not None:
            due = (self.host_lengths >= self.slots).nonzero()[:, 0]
            if len(due):
                self.compress(due)

    # -- compression ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def compress(self, due: Tensor) -> None:
        """Keeps the policy's choice of full rows `due` [n] int64, on the host, at the front of their slots."""
        budget, rows = self.policy.slots_kept, due.to(self.home)
        if self.tracker:
            self.tracker.judge(rows)
        for slab in self.slabs:
            layers, _, heads, slots, head_dim = slab.keys.shape
            block = max(1, COMPRESSED_AT_ONCE // (len(due) * heads * slots * head_dim))
            for start in range(0, layers, block):
                self._compress_layers(slab, slice(start, start + block), rows.to(slab.keys.device))
        self.lengths[rows] = budget
        self.host_lengths[due] = budget
        self.compressions += len(due)

    def _compress_layers(self, slab: Slab, layers: slice, rows: Tensor) -> None:
        policy, budget = self.policy, self.policy.slots_kept
        due = slice(None) if len(rows) == self.rows else rows  # where all rows are, nothing is copied to look at it
        positions = slab.positions[layers, due]
        shape = positions.shape[:2]
        attention = slab.attention[layers, due].flatten(0, 1) if policy.reads_attention else None
        penalty = self.penalty(rows, positions).flatten(0, 1) if policy.reads_sentences else None
        kept = policy.keep(
            slab.keys[layers, due].flatten(0, 1),
            slab.queries[layers, due].flatten(0, 1),
            penalty=penalty,
            attention=attention,
            values=slab.values[layers, due].flatten(0, 1) if policy.reads_values else None,
            newest=self.newest(rows).repeat(shape[0]) if policy.reads_values else None,
        )
        for table in (slab.keys, slab.values, slab.positions):
            table[layers, due, :, :budget] = take(table[layers, due].flatten(0, 1), kept).unflatten(0, shape)
        if attention is not None:
            best = take(attention, kept).unflatten(0, shape)
            slab.attention[layers, due] = 0.0
            slab.attention[layers, due, :, :budget] = best

    def penalty(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Sentence penalties at cached positions [layers, n, kv_heads, slots], float32, on their device."""
        assert self.tracker is not None
        return self.tracker.penalty(rows.to(self.home), positions.to(self.home)).to(positions.device)

    def newest(self, rows: Tensor) -> Tensor:
        """Original position of the last token of rows [n] int64, on their device."""
        return (self.seen[rows.to(self.home)] - 1).to(rows.device)

    def _reserve(self, slots: int) -> None:
        """Grows a cache without a budget; one with a budget has all its slots from the start."""
        if slots > self.slots:
            self.slots = -(-slots // GROWTH) * GROWTH
            for slab in self.slabs:
                slab.grow(self.slots)
            self.peak_kv_bytes = self.kv_bytes()

    # -- what it holds -------------------------------------------------------------------------------------------------

    def kv_bytes(self) -> int:
        """Bytes of all keys and values held now."""
        return sum(slab.keys.nbytes + slab.values.nbytes for slab in self.slabs)

    def report(self) -> dict[str, Any]:
        """What the cache holds: bytes, slots, and the original positions kept.

        Returns:
            kv_bytes, peak_kv_bytes: bytes of keys and values; side_bytes: bytes of everything else (positions, queries,
            accumulated attention, sentences); slots: per head and row; lengths: occupied slots per row; compressions;
            positions: per layer a list of rows, each [kv_heads, occupied] int32.
        """
        side = sum(s.positions.nbytes + s.queries.nbytes + s.attention.nbytes for s in self.slabs)
        lengths = self.host_lengths.tolist()
        return {
            "kv_bytes": self.kv_bytes(),
            "peak_kv_bytes": self.peak_kv_bytes,
            "side_bytes": side + (self.tracker.bytes_held() if self.tracker else 0),
            "slots": self.slots,
            "lengths": lengths,
            "compressions": self.compressions,
            "positions": [
                [layer.slab.positions[layer.index, row, :, :length].cpu() for row, length in enumerate(lengths)]
                for layer in self.layers
            ],
        }
