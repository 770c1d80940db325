"""Sentences as the decoder sees them: runs of tokens that end at a delimiter, tracked row by row while they grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.redundancy import sentence_penalty

# The authors' delimiters: a token that ends a sentence is the last token of one of these (SkipKV, section 3.1).
DELIMITERS = ("\n", ".\n", ")\n", "\n\n", ".\n\n", ")\n\n", "?\n\n")
NO_SENTENCE = -1  # of prompt tokens


def delimiter_ids(tokenizer: Any) -> list[int]:
    """Ids of the tokens that end a sentence, for a Hugging Face tokenizer.

    Raises:
        BadInput: the tokenizer knows none of the delimiters.
    """
    encoded = (tokenizer.encode(text, add_special_tokens=False) for text in DELIMITERS)
    found = {ids[-1] for ids in encoded if ids and ids[-1] != tokenizer.unk_token_id}
    if not found:
        raise BadInput("the tokenizer has no newline token, so sentences have no end; pass delimiter_ids")
    return sorted(found)


def token_table(ids: Iterable[int], device: torch.device) -> Tensor:
    """A look-up table over token ids: bool, True at `ids`. Read it with `in_table`."""
    listed = torch.tensor(sorted(set(ids)), dtype=torch.int64, device=device)
    size = int(listed.max()) + 2 if listed.numel() else 1
    return torch.zeros(size, dtype=torch.bool, device=device).index_fill_(0, listed, True)


def in_table(table: Tensor, tokens: Tensor) -> Tensor:
    """Whether each token id is in a `token_table`, in the shape of `tokens`; ids past its end are not."""
    return table[tokens.clamp(max=table.shape[0] - 1)]


class SentenceTracker:
    """Per row: which sentence each position belongs to, the embedding of each sentence, and its penalty.

    A sentence's embedding is the mean over its tokens of the last-layer hidden state, kept as a running sum, so no
    history of states is held. Sums live in a ring of the latest `ring` sentences: memory does not grow with the
    answer, and a sentence older than that is no longer compared (its penalty stays).

    Attributes:
        sums: [rows, ring + 1, hidden] float32; sentence number n has place n % ring, padding the place past the ring.
        closed: [rows] int64, sentences ended so far; also the number of the open one.
        sentence_of: [rows, positions] int32, number of each position's sentence, NO_SENTENCE in the prompt.
        penalty_of: [rows, positions] float32, penalty of each sentence, by its number.
    """

    def __init__(
        self,
        rows: int,
        hidden: int,
        delimiters: Iterable[int],
        device: torch.device,
        tau: float,
        centred: bool = False,
        ring: int = 256,
    ) -> None:
        self.tau, self.centred, self.ring = tau, centred, ring
        self.delimiters = token_table(delimiters, device)
        self.sums = torch.zeros(rows, ring + 1, hidden, device=device)
        self.closed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.sentence_of = torch.full((rows, 1), NO_SENTENCE, dtype=torch.int32, device=device)
        self.penalty_of = torch.zeros(rows, 1, device=device)

    def reserve(self, positions: int) -> None:
        """Makes the tables hold `positions` positions, and one column more that padding writes to."""
        rows, held = self.sentence_of.shape
        if positions >= held:
            more = max(positions + 1, 2 * held, 1024) - held
            self.sentence_of[:, -1], self.penalty_of[:, -1] = NO_SENTENCE, 0.0  # padding may have written there
            empty = self.sentence_of.new_full((rows, more), NO_SENTENCE)
            self.sentence_of = torch.cat([self.sentence_of, empty], dim=1)
            self.penalty_of = torch.cat([self.penalty_of, self.penalty_of.new_zeros(rows, more)], dim=1)

    def clear(self, rows: Tensor) -> None:
        """Forgets the given rows [n] int64: a new request takes each of them."""
        self.sums[rows] = 0.0
        self.closed[rows] = 0
        self.sentence_of[rows] = NO_SENTENCE
        self.penalty_of[rows] = 0.0

    def add(self, rows: Tensor, tokens: Tensor, positions: Tensor, hidden: Tensor, real: Tensor) -> None:
        """Takes in the next tokens of some rows.

        Args:
            rows: [n] int64.
            tokens: [n, t] int64, token ids.
            positions: [n, t] int64, their positions in the row.
            hidden: [n, t, hidden], their hidden states after the final norm.
            real: [n, t] bool, False at padding.
        """
        row, padding = rows[:, None], self.sentence_of.shape[1] - 1
        ends = in_table(self.delimiters, tokens) & real
        ended = ends.cumsum(dim=1)
        number = self.closed[row] + ended - ends.long()
        self.sums[row, ((number + 1) % self.ring).where(ends, self.ring)] = 0.0  # the next sentence's place, anew
        place = (number % self.ring).where(real, self.ring)
        self.sums.index_put_((row, place), hidden.float(), accumulate=True)
        self.sentence_of[row, positions.where(real, padding)] = number.int()
        self.closed[rows] += ended[:, -1]

    def judge(self, rows: Tensor) -> None:
        """Compares the closed sentences of the given rows [n] int64 with each other and notes their penalties."""
        closed = self.closed[rows, None]
        place = torch.arange(self.ring, device=rows.device)
        number = closed - (closed - place) % self.ring
        number = number.where((number >= 0) & (number < closed), -1)
        # The mean over the tokens points where their sum points: no count is needed.
        penalty = sentence_penalty(self.sums[rows, : self.ring], number, self.tau, self.centred)
        self.penalty_of[rows[:, None], number.where(number >= 0, self.penalty_of.shape[1] - 1)] = penalty

    def penalty(self, rows: Tensor, positions: Tensor) -> Tensor:
        """The sentence penalty at each cached token.

        Args:
            rows: [n] int64.
            positions: [layers, n, kv_heads, slots] integer, original positions of the tokens in the slots.

        Returns:
            [layers, n, kv_heads, slots] float32, 0 in the prompt and where nothing is redundant.
        """
        by_row = rows[None, :, None, None]
        number = self.sentence_of[by_row, positions.long()].long()
        return self.penalty_of[by_row, number.clamp(min=0)].where(number >= 0, 0.0)

    def bytes_held(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in (self.sums, self.closed, self.sentence_of, self.penalty_of))
