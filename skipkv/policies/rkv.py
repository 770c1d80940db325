"""R-KV (Cai et al., arXiv:2505.24133): important tokens whose keys nothing later repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached
from skipkv.policies.snapkv import SnapKV
from skipkv.scores import best_and_window, importance, redundancy


@dataclass(frozen=True)
class RKV(SnapKV):
    """Z = lam * importance - (1 - lam) * redundancy, per token and KV head."""

    name: ClassVar[str] = "rkv"

    lam: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam <= 1:
            raise BadInput(f"lam is {self.lam}; it must be from 0 to 1")

    def score(self, cached: Cached) -> Tensor:
        """Z of the tokens before the window: [batch, kv_heads, slots - window] float32."""
        important = importance(cached.keys, cached.queries, self.kernel_size)
        return self.lam * important - (1 - self.lam) * redundancy(cached.keys)[..., : important.shape[-1]]

    def choose(self, cached: Cached) -> Tensor:
        return best_and_window(self.score(cached), self.slots_kept, self.window)
