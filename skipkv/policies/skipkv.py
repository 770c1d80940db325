"""SkipKV (Tian et al., arXiv:2512.07993): whole sentences that a later sentence repeats leave first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached
from skipkv.policies.rkv import RKV
from skipkv.scores import best_and_window


@dataclass(frozen=True)
class SkipKV(RKV):
    """R-KV's score less the sentence penalty at every token of a redundant sentence.

    Attributes:
        tau: sentences more alike than this (cosine of their embeddings) are redundant.
        centred: compare sentences by how they differ from the row's mean sentence. Hidden states of a model share a
            direction, so that without it one model calls most sentences alike at a tau where another calls none so.
    """

    name: ClassVar[str] = "skipkv"
    reads_sentences: ClassVar[bool] = True

    tau: float = 0.95
    centred: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            raise BadInput(f"tau is {self.tau}; it must be above 0 and at most 1")

    def choose(self, cached: Cached) -> Tensor:
        score = self.score(cached)
        if cached.penalty is not None:
            score = score - cached.penalty[..., : score.shape[-1]]
        return best_and_window(score, self.slots_kept, self.window)
