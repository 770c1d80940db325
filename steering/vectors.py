"""A steering vector: a direction in the hidden states that enter one layer, with its file and its controller."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.files import write_atomically
from skipkv.steering.controller import AdaptiveRows, ThinkTokens

TENSOR = "vector"
NUMBERS = ("layer", "alpha0", "gamma")


@dataclass(frozen=True)
class SteeringVector:
    """mean(hidden state, non-execution) - mean(hidden state, execution) at one layer (SkipKV, section 3.2).

    Attributes:
        vector: [hidden] float32.
        layer: index of the decoder layer whose input is shifted.
        tokens: which tokens mark thinking, sentence ends and re-checks.
        alpha0: coefficient of the vector before the first re-check; negative steers away from re-checking.
        gamma: how much the coefficient falls with every re-check of the row.
        notes: how the vector was made (model, position, counts, metrics, versions), all text.
    """

    vector: Tensor
    layer: int
    tokens: ThinkTokens
    alpha0: float = -1.0
    gamma: float = 0.02
    notes: dict[str, str] = field(default_factory=dict)

    def start(self, rows: int, layers: int, hidden: int, device: torch.device) -> AdaptiveRows:
        """Steering for a batch of `rows` on a model with `layers` layers of width `hidden`.

        Raises:
            BadInput: the vector was made for another width.
        """
        if self.vector.numel() != hidden:
            raise BadInput(
                f"the steering vector has {self.vector.numel()} numbers, but the model's hidden size is {hidden}; "
                "extract one from this model"
            )
        return AdaptiveRows(self.vector.to(device), self.alpha0, self.gamma, self.tokens, rows)

    def with_strength(self, alpha0: float | None = None, gamma: float | None = None) -> SteeringVector:
        """The same direction with other coefficients; None leaves one as it is."""
        return replace(
            self,
            alpha0=self.alpha0 if alpha0 is None else alpha0,
            gamma=self.gamma if gamma is None else gamma,
        )

    def save(self, path: Path) -> None:
        """Writes a safetensors file with everything but the tensor in its metadata."""
        told = {**self.notes, "tokens": json.dumps(self.tokens.as_dict())}
        told.update({name: str(getattr(self, name)) for name in NUMBERS})
        write_atomically(path, save({TENSOR: self.vector.float().contiguous()}, metadata=told))


def load_vector(path: str | Path) -> SteeringVector:
    """Reads what `SteeringVector.save` wrote.

    Raises:
        BadInput: the file is missing, broken, or not a steering vector.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no steering vector at '{path}'; give a .safetensors file that extract-vectors wrote")
    try:
        with safe_open(path, "pt") as file:
            told: dict[str, Any] = dict(file.metadata() or {})
            vector = file.get_tensor(TENSOR)
        tokens = ThinkTokens(**json.loads(told.pop("tokens")))
        layer = int(told.pop("layer"))
        alpha0, gamma = float(told.pop("alpha0")), float(told.pop("gamma"))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"'{path}' is not a steering vector of ours ({error}); extract-vectors writes one") from error
    return SteeringVector(vector, layer, tokens, alpha0, gamma, told)
