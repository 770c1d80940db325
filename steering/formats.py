"""Vectors that others wrote, and ours for others: bare tensors, GGUF control vectors, steering-vectors objects.

In all of them a vector belongs to the *output* of a layer (the authors' bare tensors to the input); ours belongs to a
layer's input, so the output of layer n is the input of layer n + 1.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from skipkv.errors import BadInput

ARCHITECTURE = "controlvector"  # of GGUF files with control vectors, as repeng and llama.cpp write them


def read_directions(path: Path) -> dict[int | None, Tensor]:
    """The directions in a file, [hidden] float32 each, by the layer whose input they shift; None where it is not told.

    Raises:
        BadInput: the file is none of the known formats, or broken.
    """
    readers = {".pt": _read_bare, ".pth": _read_bare, ".gguf": _read_gguf, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise BadInput(f"'{path}' is no vector file: known are {', '.join(readers)}")
    try:
        found = readers[path.suffix](path)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0]
        raise BadInput(f"'{path}' does not read as a {path.suffix} vector: {reason}") from error
    if not found:
        raise BadInput(f"'{path}' holds no vector of one dimension")
    return found


def _read_bare(path: Path) -> dict[int | None, Tensor]:
    """The authors' files: one tensor."""
    tensor = torch.load(path, weights_only=True, map_location="cpu")
    if not isinstance(tensor, Tensor) or tensor.squeeze().dim() != 1:
        raise ValueError("it must hold one tensor of one dimension")
    return {None: tensor.squeeze().float()}


def _read_safetensors(path: Path) -> dict[int | None, Tensor]:
    """steering-vectors: `layer_activations` under keys that end in the layer's number."""
    found: dict[int | None, Tensor] = {}
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118  (no mapping)
            tensor, number = file.get_tensor(key).squeeze(), re.search(r"(\d+)$", key)
            if tensor.dim() == 1 and number:
                found[int(number[1]) + 1] = tensor.float()
    return found


def _read_gguf(path: Path) -> dict[int | None, Tensor]:
    """repeng, llama.cpp: tensors "direction.<layer>"."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise BadInput("reading .gguf needs the package gguf: pip install skipkv[gguf]") from error
    return {
        int(tensor.name.split(".")[1]) + 1: torch.from_numpy(np.array(tensor.data, dtype=np.float32)).squeeze()
        for tensor in GGUFReader(path).tensors
        if tensor.name.startswith("direction.")
    }


def write_gguf(path: Path, vector: Tensor, layer: int, model_type: str) -> None:
    """Writes a control vector for llama.cpp, which adds it to the output of layer - 1.

    Raises:
        BadInput: the layer is below 2 (llama.cpp leaves its first layer alone), or gguf is not installed.
    """
    try:
        from gguf import GGUFWriter
    except ImportError as error:
        raise BadInput("writing .gguf needs the package gguf: pip install skipkv[gguf]") from error
    if layer < 2:
        raise BadInput(f"the vector is for layer {layer}; llama.cpp steers from the input of layer 2 on")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    writer = GGUFWriter(beside, ARCHITECTURE)
    writer.add_string(f"{ARCHITECTURE}.model_hint", model_type)
    writer.add_uint32(f"{ARCHITECTURE}.layer_count", 1)
    writer.add_tensor(f"direction.{layer - 1}", vector.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)
