"""The next token of every row, drawn with randomness that is the row's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skipkv.errors import BadInput


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_p 1 and top_k 0 keep the whole vocabulary.

    Raises:
        BadInput: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise BadInput(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < 0:
            raise BadInput(f"top_k is {self.top_k}; it must be 0 (off) or above")

    def draw(self, logits: Tensor, requests: Tensor, steps: Tensor) -> Tensor:
        """One token per row: [rows] int64.

        Args:
            logits: [rows, vocab].
            requests, steps: [rows] int64, the request in each row and how many tokens it has written.
        """
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        scores = self.restrict(logits.float() / self.temperature)
        return (scores - uniform(self.seed, requests, steps, logits.shape[-1]).log().neg().log()).argmax(dim=-1)

    def restrict(self, scores: Tensor) -> Tensor:
        """Sets what top_k and top_p leave out to -inf; [rows, vocab] float32."""
        if self.top_k:
            least = scores.topk(min(self.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p < 1:
            ranked, order = scores.sort(dim=-1, descending=True)
            share = ranked.softmax(dim=-1)
            beyond = share.cumsum(dim=-1) - share >= self.top_p
            scores = scores.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
        return scores


def uniform(seed: int, requests: Tensor, steps: Tensor, vocab: int) -> Tensor:
    """Uniform numbers in (0, 1) that depend on seed, request, step and token alone: [rows, vocab] float32.

    A counter hashed twice (the finaliser of MurmurHash3 on 32 bits), so neither the batch nor the device matters. With
    them, argmax(score - log(-log(u))) draws from softmax(score) (the Gumbel-max trick).
    """
    row = mix(requests * 0x9E3779B1 + mix(steps + 0x85EBCA6B + seed * 0xC2B2AE35))
    token = torch.arange(vocab, device=requests.device)
    return ((mix(row[:, None] + mix(token * 0x27D4EB2F + 1)) >> 9).float() + 0.5) / 2**23


def mix(value: Tensor) -> Tensor:
    """Scrambles the low 32 bits of int64 numbers."""
    value = value & 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)
