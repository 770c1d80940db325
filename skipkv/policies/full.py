"""FullKV: nothing is ever dropped. The yardstick of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Policy


@dataclass(frozen=True)
class FullKV(Policy):
    """Keeps every token; the cache grows with the sequence."""

    name: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        if self.budget is not None:
            raise BadInput(f"full keeps everything; it takes no budget, but {self.budget} was given")

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
        """All slots: [batch, kv_heads, slots] int64."""
        return torch.arange(keys.shape[2], device=keys.device).expand(keys.shape[:3])
