"""Adaptive steering while a batch decodes: how hard each row is pushed, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from skipkv.sentences import delimiter_ids, in_table, token_table
from skipkv.thinking import THINK_END, THINK_START

# The authors' marks of a non-execution sentence (SkipKV, section 3.2).
MARKERS = ("Alternatively", "Wait", "again")


@dataclass(frozen=True)
class ThinkTokens:
    """Ids of the tokens that the controller watches for.

    Attributes:
        delimiters: end a sentence.
        markers: mark a sentence as non-execution.
        think_start, think_end: open and close the thinking span; without them all that is written is thinking.
    """

    delimiters: list[int]
    markers: list[int]
    think_start: list[int]
    think_end: list[int]

    def as_dict(self) -> dict[str, list[int]]:
        """Plain lists, for a file's metadata."""
        return asdict(self)


def think_tokens(tokenizer: Any, markers: Iterable[str] = MARKERS) -> ThinkTokens:
    """The ids to watch for, read off a Hugging Face tokenizer; markers count with and without a space before them."""

    def single(texts: Iterable[str]) -> list[int]:
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return sorted({ids[0] for ids in encoded if len(ids) == 1 and ids[0] != tokenizer.unk_token_id})

    return ThinkTokens(
        delimiters=delimiter_ids(tokenizer),
        markers=single(form for word in markers for form in (word, " " + word)),
        think_start=single([THINK_START]),
        think_end=single([THINK_END]),
    )


class AdaptiveRows:
    """The coefficient of each row: alpha0 - gamma * (non-execution sentences so far), at sentence ends in the thinking.

    Attributes:
        thinking: [rows] bool, inside the thinking span.
        marked: [rows] bool, the open sentence holds a marker.
        rechecks: [rows] int64, non-execution sentences that ended so far.
        coefficient: [n] float32, of the current pass; 0 where the row is not steered.
        last: [n] int64, the column of each row's last token in the current pass.
    """

    def __init__(
        self,
        vector: Tensor,
        alpha0: float,
        gamma: float,
        tokens: ThinkTokens,
        rows: int,
        max_shift: float | None = None,
    ) -> None:
        self.vector, self.alpha0, self.gamma, self.max_shift = vector, alpha0, gamma, max_shift
        device = vector.device
        self.delimiters = token_table(tokens.delimiters, device)
        self.markers = token_table(tokens.markers, device)
        self.opening = token_table(tokens.think_start, device)
        self.closing = token_table(tokens.think_end, device)
        self.always_thinking = not tokens.think_start
        self.thinking = torch.full((rows,), self.always_thinking, device=device)
        self.marked = torch.zeros(rows, dtype=torch.bool, device=device)
        self.rechecks = torch.zeros(rows, dtype=torch.int64, device=device)
        self.coefficient = torch.zeros(rows, device=device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=device)

    def clear(self, rows: Tensor) -> None:
        """Forgets rows [n] int64."""
        rows = rows.to(self.thinking.device)
        self.thinking[rows] = self.always_thinking
        self.marked[rows] = False
        self.rechecks[rows] = 0

    def read(self, rows: Tensor, tokens: Tensor, real: Tensor) -> None:
        """Takes in the tokens [n, t] of the coming pass and sets the coefficient of each row."""
        device = self.thinking.device
        rows, tokens, real = rows.to(device), tokens.to(device), real.to(device)
        column = torch.arange(tokens.shape[1], device=device)
        opened = column.where(in_table(self.opening, tokens) & real, -1)
        closed = column.where(in_table(self.closing, tokens) & real, -1)
        # A token is in the thinking when the latest mark at or before it opened the span; before any, the row tells.
        opened, closed = opened.cummax(dim=1).values, closed.cummax(dim=1).values
        thinking = (opened > closed) | ((opened == closed) & self.thinking[rows, None])
        ends = in_table(self.delimiters, tokens) & real & thinking
        counts = self._count_rechecks(rows, tokens, real, ends)
        self.rechecks[rows] += counts
        self.last = column.where(real, -1).amax(dim=1)
        at_last = self.last[:, None]
        self.thinking[rows] = thinking.gather(1, at_last)[:, 0]
        strength = self.alpha0 - self.gamma * self.rechecks[rows]
        self.coefficient = strength.where(ends.gather(1, at_last)[:, 0], 0.0)

    def _count_rechecks(self, rows: Tensor, tokens: Tensor, real: Tensor, ends: Tensor) -> Tensor:
        """Sentences that end in this pass and hold a marker: [n] int64. Notes whether the open one holds one."""
        marks = in_table(self.markers, tokens) & real
        seen = marks.cumsum(dim=1) + self.marked[rows, None]
        # Marks seen up to the sentence end before this column: the open sentence holds those since then.
        before = torch.nn.functional.pad(seen.where(ends, 0).cummax(dim=1).values, (1, 0))
        held = seen - before[:, :-1]
        self.marked[rows] = seen[:, -1] > before[:, -1]
        return (ends & (held > 0)).sum(dim=1)

    def shift(self, hidden: Tensor) -> Tensor:
        """Adds coefficient * vector at the last token of each row; rows with coefficient 0 stay exactly as they are.

        No shift is longer than `max_shift` times the state that it is added to.

        Args:
            hidden: [n, t, hidden], the input of the steered layer.

        Returns:
            The same shape and dtype.
        """
        step = self.coefficient[:, None] * self.vector
        steered = hidden.clone()
        index = torch.arange(hidden.shape[0], device=hidden.device)
        state = hidden[index, self.last]
        if self.max_shift is not None:
            longest = self.max_shift * state.float().norm(dim=-1, keepdim=True)
            step = step * (longest / step.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        step = step.to(hidden.dtype)
        steered[index, self.last] = torch.where(self.coefficient[:, None] != 0, state + step, state)
        return steered


class LabelledRows(AdaptiveRows):
    """Steering that counts re-checks by reading each sentence when it ends, in place of the fast token rule.

    Every step waits for the tokens on the host, and sentences are read one by one: for research, not for serving.

    Args:
        rechecks_in: whether each of some sentences, as token ids, is a re-check.
    """

    def __init__(self, rechecks_in: Callable[[list[list[int]]], list[bool]], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rechecks_in = rechecks_in
        self.open: list[list[int]] = [[] for _ in range(len(self.thinking))]

    def clear(self, rows: Tensor) -> None:
        super().clear(rows)
        for row in rows.tolist():
            self.open[row] = []

    def _count_rechecks(self, rows: Tensor, tokens: Tensor, real: Tensor, ends: Tensor) -> Tensor:
        ended: list[tuple[int, list[int]]] = []
        for place, row in enumerate(rows.tolist()):
            for token, counts, closes in zip(*(t[place].tolist() for t in (tokens, real, ends)), strict=True):
                if counts:
                    self.open[row].append(token)
                if closes:
                    ended.append((place, self.open[row]))
                    self.open[row] = []
        found = torch.zeros(len(rows), dtype=torch.int64)
        if ended:
            for (place, _), recheck in zip(ended, self.rechecks_in([ids for _, ids in ended]), strict=True):
                found[place] += recheck
        return found.to(rows.device)
