"""StreamingLLM (Xiao et al., arXiv:2309.17453): the first tokens, which soak up attention, and the latest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached, Policy


@dataclass(frozen=True)
class StreamingLLM(Policy):
    """Keeps `sinks` first tokens and the most recent `budget - sinks`."""

    name: ClassVar[str] = "streamingllm"

    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sinks < self.slots_kept:
            raise BadInput(f"sinks is {self.sinks}; it must be from 0 to below the budget of {self.budget}")

    def choose(self, cached: Cached) -> Tensor:
        batch, kv_heads, slots, _ = cached.keys.shape
        slot = torch.arange(self.slots_kept, device=cached.keys.device)
        kept = torch.where(slot < self.sinks, slot, slot + slots - self.slots_kept)
        return kept.expand(batch, kv_heads, -1)
