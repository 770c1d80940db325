"""A steering vector: a direction in the hidden states that enter one layer, with its file and its controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.files import write_atomically
from skipkv.steering.controller import AdaptiveRows, LabelledRows, ThinkTokens, think_tokens
from skipkv.steering.formats import read_directions
from skipkv.steering.functions import NON_EXECUTION, Labeller, functions_of
from skipkv.steering.presets import Preset, preset_for

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
        max_shift: longest shift, as a share of the norm of the hidden state that it is added to; no limit where None.
        rechecks_in: tells which sentences (token ids) are re-checks, in place of the marker tokens; not kept in files.
        notes: how the vector was made (model, position, counts, metrics, versions), all text.
        others: further directions found at the same layer, by name; they do not steer.
    """

    vector: Tensor
    layer: int
    tokens: ThinkTokens
    alpha0: float = -1.0
    gamma: float = 0.02
    max_shift: float | None = None
    rechecks_in: Callable[[list[list[int]]], list[bool]] | None = None
    notes: dict[str, str] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)

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
        options = (self.vector.to(device), self.alpha0, self.gamma, self.tokens, rows, self.max_shift)
        return LabelledRows(self.rechecks_in, *options) if self.rechecks_in else AdaptiveRows(*options)

    def with_strength(
        self, alpha0: float | None = None, gamma: float | None = None, max_shift: float | None = None
    ) -> SteeringVector:
        """The same direction with other coefficients; None leaves one as it is."""
        return replace(
            self,
            alpha0=self.alpha0 if alpha0 is None else alpha0,
            gamma=self.gamma if gamma is None else gamma,
            max_shift=self.max_shift if max_shift is None else max_shift,
        )

    def counting_with(self, tokenizer: Any, label: Labeller | None = None) -> SteeringVector:
        """The same, counting re-checks by a labeller (our classifier where None) in place of marker tokens."""

        def rechecks_in(sentences: list[list[int]]) -> list[bool]:
            texts = tokenizer.batch_decode(sentences)
            return [function in NON_EXECUTION for function in functions_of([text.strip() for text in texts], label)]

        return replace(self, rechecks_in=rechecks_in)

    def save(self, path: Path) -> None:
        """Writes a safetensors file with everything but the tensor in its metadata."""
        told = {**self.notes, "tokens": json.dumps(self.tokens.as_dict())}
        told.update({name: str(getattr(self, name)) for name in NUMBERS})
        if self.max_shift is not None:
            told["max_shift"] = str(self.max_shift)
        tensors = {TENSOR: self.vector, **self.others}
        kept = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
        write_atomically(path, save(kept, metadata=told))


def load_vector(
    path: str | Path, *, tokenizer: Any = None, model: str = "", layer: int | None = None
) -> SteeringVector:
    """Reads a steering vector: ours, or another tool's (see `skipkv.steering.formats`).

    Args:
        tokenizer: the model's; other tools' files do not tell which tokens to watch for.
        model: its name, for the preset of other tools' files (layer, strength).
        layer: the layer whose input another tool's vector shifts, where the file or the preset does not tell.

    Raises:
        BadInput: the file is missing, broken, or needs one of the arguments.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no steering vector at '{path}'; give a file that extract-vectors wrote, or .pt, .gguf")
    if path.suffix == ".safetensors" and (ours := _read_ours(path)):
        return ours
    directions, preset = read_directions(path), preset_for(model)
    if tokenizer is None:
        raise BadInput(f"'{path}' is another tool's vector; loading it needs the model's tokenizer")
    wanted = layer if layer is not None else preset.layer if preset else None
    if None in directions and wanted is not None:
        directions = {wanted: directions[None]}
    elif wanted is None and len(directions) == 1:
        (wanted,) = directions
    if wanted is None or wanted not in directions:
        told = ", ".join(str(known) for known in directions if known is not None) or "none"
        raise BadInput(f"'{path}' has vectors for the input of layers: {told}; give --vector-layer")
    strength = preset or Preset(wanted, -1.0)
    return SteeringVector(
        directions[wanted], wanted, think_tokens(tokenizer), strength.alpha0, strength.gamma, notes={"file": path.name}
    )


def _read_ours(path: Path) -> SteeringVector | None:
    """What `SteeringVector.save` wrote; None where the file is another tool's."""
    try:
        with safe_open(path, "pt") as file:
            told: dict[str, Any] = dict(file.metadata() or {})
            if TENSOR not in file.keys() or "tokens" not in told:  # noqa: SIM118  (no mapping)
                return None
            vector = file.get_tensor(TENSOR)
            others = {name: file.get_tensor(name) for name in file.keys() if name != TENSOR}  # noqa: SIM118
        tokens = ThinkTokens(**json.loads(told.pop("tokens")))
        layer = int(told.pop("layer"))
        alpha0, gamma = float(told.pop("alpha0")), float(told.pop("gamma"))
        max_shift = float(told.pop("max_shift")) if "max_shift" in told else None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"'{path}' is not a steering vector of ours ({error}); extract-vectors writes one") from error
    return SteeringVector(vector, layer, tokens, alpha0, gamma, max_shift, notes=told, others=others)
