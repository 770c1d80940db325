"""SnapKV (Li et al., arXiv:2404.14469): the tokens that the last queries attend to, and the window itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached, Policy
from skipkv.scores import best_and_window, importance


@dataclass(frozen=True)
class SnapKV(Policy):
    """Keeps the tokens with the highest pooled attention from the window."""

    name: ClassVar[str] = "snapkv"
    reads_queries: ClassVar[bool] = True

    kernel_size: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise BadInput(f"kernel_size is {self.kernel_size}; it must be an odd number of tokens")

    def choose(self, cached: Cached) -> Tensor:
        return best_and_window(importance(cached.keys, cached.queries, self.kernel_size), self.slots_kept, self.window)
