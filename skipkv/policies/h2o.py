"""H2O (Zhang et al., arXiv:2306.14048): heavy hitters of the attention accumulated over all queries, and the latest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipkv.errors import BadInput
from skipkv.policies.base import Cached, Policy
from skipkv.scores import best_and_window


@dataclass(frozen=True)
class H2O(Policy):
    """Half the budget goes to the tokens with the most accumulated attention, half to the most recent tokens."""

    name: ClassVar[str] = "h2o"
    reads_attention: ClassVar[bool] = True

    def choose(self, cached: Cached) -> Tensor:
        if cached.attention is None:
            raise BadInput("h2o needs attention: the attention accumulated over all queries so far")
        recent = max(self.window, self.slots_kept // 2)
        return best_and_window(cached.attention[..., :-recent], self.slots_kept, recent)
