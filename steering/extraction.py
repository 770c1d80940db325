"""From traces to a steering vector: record, cluster, choose the layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import skipkv
from skipkv.errors import BadInput
from skipkv.files import read_jsonl
from skipkv.steering.activations import Activations, Trace, record
from skipkv.steering.clustering import MAIN, LayerDirection, direction
from skipkv.steering.controller import think_tokens
from skipkv.steering.functions import FUNCTIONS, Labeller
from skipkv.steering.vectors import SteeringVector
from skipkv.thinking import thinking_of

TEXT_FIELDS = ("text", "thinking", "response")
NEARLY = 0.005  # of AUC: a layer this close to the best is as good


def read_traces(path: Path) -> list[Trace]:
    """Traces from JSONL: our answers.jsonl, or rows with `text`, `thinking` or `response` (and maybe `prompt`).

    Raises:
        BadInput: the file is missing, empty, or a line is not such a row.
    """
    traces = []
    for number, row in read_jsonl(path, "--traces"):
        texts = [row[name] for name in TEXT_FIELDS if isinstance(row.get(name), str)]
        if not texts:
            raise BadInput(f"'{path}' line {number} is no trace; each line needs one of {', '.join(TEXT_FIELDS)}")
        traces.append(Trace(str(row.get("prompt", "")), thinking_of(texts[0])))
    return traces


def layers_asked(layer: str, count: int) -> list[int]:
    """The layers to look at: one, several ("2,3,5"), or all with "auto".

    Raises:
        BadInput: a layer is not one of the model's.
    """
    if layer == "auto":
        return list(range(1, count))  # layer 0 enters with the bare embeddings: they know nothing of the sentence
    asked = layer.split(",")
    if not all(one.isdigit() and int(one) < count for one in asked):
        raise BadInput(f"--layer is '{layer}'; it must be auto or from 0 to {count - 1}, the layers of this model")
    return [int(one) for one in asked]


def best(directions: Sequence[LayerDirection]) -> tuple[LayerDirection, str]:
    """The layer where a probe tells the functions apart best, the earliest of those nearly as good; and why."""
    if len(directions) == 1:
        return directions[0], "the layer asked for"
    top = max(directions, key=lambda found: found.auc)
    chosen = next((found for found in directions if found.auc >= top.auc - NEARLY), top)
    why = f"probe AUC {chosen.auc:.3f} with whole traces held out"
    if chosen is not top:
        why += f", the earliest within {NEARLY} of layer {top.layer}'s {top.auc:.3f}"
    return chosen, why


@dataclass(frozen=True)
class Extraction:
    """What extraction found: the vector, why this layer, every layer's numbers, and the states for pictures."""

    vector: SteeringVector
    why: str
    directions: list[LayerDirection]
    activations: Activations


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
    label: Labeller | None = None,
    method: str = "kmeans",
    clusters: int | None = None,
    batch_size: int = 8,
    finished: Callable[[], None] = lambda: None,
) -> Extraction:
    """The steering vector of the best of `layers`.

    Args:
        label: tells the sentences' functions; our own classifier where None.
        method, clusters: of clustering; see `skipkv.steering.clustering.direction`.
        finished: called after each trace.

    Raises:
        BadInput: the traces have no sentences, or only one kind of them.
    """
    activations = record(
        model, tokenizer, traces, layers, position, label=label, batch_size=batch_size, finished=finished
    )
    directions = [direction(activations, index, seed, method, clusters) for index in range(len(layers))]
    chosen, why = best(directions)
    counts = {name: activations.functions.count(name) for name in FUNCTIONS}
    notes = {
        "model": Path(model.config._name_or_path).name,
        "revision": str(getattr(model.config, "_commit_hash", None) or ""),
        "model_type": model.config.model_type,
        "hidden_size": str(chosen.vector.size),
        "position": position,
        "traces": str(len(traces)),
        "sentences": json.dumps(counts),
        "layer_chosen_by": why,
        "layers": json.dumps([row_of(found) for found in directions]),
        "clustering": method,
        "seed": str(seed),
        "skipkv": skipkv.__version__,
        "torch": version("torch"),
        "transformers": version("transformers"),
        "scikit-learn": version("scikit-learn"),
    }
    vector = torch.from_numpy(chosen.vector)
    others = {name: torch.from_numpy(found) for name, found in chosen.vectors.items() if name != MAIN}
    steering = SteeringVector(vector, chosen.layer, think_tokens(tokenizer), alpha0, gamma, notes=notes, others=others)
    return Extraction(steering, why, directions, activations)


def row_of(found: LayerDirection) -> dict[str, Any]:
    """A layer's numbers, as the table shows them."""
    norms = {f"norm of {name}": round(float(np.linalg.norm(one)), 4) for name, one in found.vectors.items()}
    told = {name: getattr(found, name) for name in ("layer", "clusters", "silhouette", "auc", "kept")}
    return {name: round(value, 4) for name, value in told.items()} | norms
