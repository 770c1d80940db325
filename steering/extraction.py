"""From traces to a steering vector: record, cluster, choose the layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from skipkv.errors import BadInput
from skipkv.steering.activations import POSITIONS, Activations, Trace, record
from skipkv.steering.clustering import LayerDirection, direction
from skipkv.steering.controller import think_tokens
from skipkv.steering.functions import FUNCTIONS, thinking_of
from skipkv.steering.vectors import SteeringVector

TEXT_FIELDS = ("text", "thinking", "response")


def read_traces(path: Path) -> list[Trace]:
    """Traces from JSONL: our answers.jsonl, or rows with `text`, `thinking` or `response` (and maybe `prompt`).

    Raises:
        BadInput: the file is missing, empty, or a line is not such a row.
    """
    if not path.is_file():
        raise BadInput(f"--traces is '{path}'; there is no such file")
    traces = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text = next(row[name] for name in TEXT_FIELDS if name in row)
            traces.append(Trace(row.get("prompt", ""), thinking_of(text)))
        except (ValueError, StopIteration, AttributeError) as error:
            raise BadInput(
                f"'{path}' line {number} is no trace; each line is a JSON object with one of {', '.join(TEXT_FIELDS)}"
            ) from error
    if not traces:
        raise BadInput(f"'{path}' holds no trace")
    return traces


def check_position(position: str) -> None:
    """Raises BadInput where `position` is not one of POSITIONS."""
    if position not in POSITIONS:
        raise BadInput(f"--position is '{position}'; it must be one of {', '.join(POSITIONS)}")


def layers_asked(layer: str, count: int) -> list[int]:
    """The layers to look at: one, or all with "auto".

    Raises:
        BadInput: the layer is not one of the model's.
    """
    if layer == "auto":
        return list(range(1, count))  # layer 0 enters with the bare embeddings: they know nothing of the sentence
    if not layer.isdigit() or int(layer) >= count:
        raise BadInput(f"--layer is '{layer}'; it must be auto or from 0 to {count - 1}, the layers of this model")
    return [int(layer)]


def best(directions: Sequence[LayerDirection]) -> LayerDirection:
    """The layer where a probe tells the functions apart best; the earliest of those within 0.005 of it."""
    highest = max(found.auc for found in directions)
    return next((found for found in directions if found.auc >= highest - 0.005), directions[0])


def extract(
    model: Any,
    tokenizer: Any,
    traces: Sequence[Trace],
    *,
    layers: Sequence[int],
    position: str,
    alpha0: float,
    gamma: float,
    seed: int,
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda indices: indices,
) -> tuple[SteeringVector, list[LayerDirection]]:
    """The steering vector of the best of `layers`, and what was found at each of them.

    Raises:
        BadInput: the traces have no sentences, or only one kind of them.
    """
    activations = record(model, tokenizer, traces, position, progress(range(len(traces))))
    directions = [direction(activations, layer, seed) for layer in layers]
    chosen = best(directions)
    notes = notes_of(model, activations, chosen, position, len(traces), seed)
    vector = torch.from_numpy(chosen.vector)
    return SteeringVector(vector, chosen.layer, think_tokens(tokenizer), alpha0, gamma, notes), directions


def notes_of(
    model: Any, activations: Activations, chosen: LayerDirection, position: str, traces: int, seed: int
) -> dict[str, str]:
    """How the vector was made, for its file."""
    counts = {name: activations.functions.count(name) for name in FUNCTIONS}
    return {
        "model": Path(model.config._name_or_path).name,
        "model_type": model.config.model_type,
        "position": position,
        "traces": str(traces),
        "sentences": json.dumps(counts),
        "auc": f"{chosen.auc:.4f}",
        "silhouette": f"{chosen.silhouette:.4f}",
        "kept": f"{chosen.kept:.4f}",
        "norm": f"{chosen.norm:.4f}",
        "seed": str(seed),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
