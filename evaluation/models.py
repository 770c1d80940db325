"""Loads the model and tokenizer under test: a hub name, a folder, a .gguf file, or the reasoner that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from skipkv.errors import BadInput

DATA = Path(__file__).resolve().parent.parent / "data"
REASONER = DATA / "reasoner"
REASONER_VECTOR = REASONER / "steering.safetensors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 20_000_000  # parameters under which threads wait for each other longer than they work


def load(name: str, *, device: str = "cpu", dtype: str = "float32", trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Model, in evaluation mode on its device, and tokenizer.

    Args:
        name: "reasoner", a folder, a .gguf file, or a hub name.
        trust_remote_code: run code that comes with a hub model; off unless the user asks.

    Raises:
        BadInput: nothing loads from there, or device or dtype is unknown.
    """
    if dtype not in DTYPES:
        raise BadInput(f"--dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}")
    place = REASONER if name == "reasoner" else Path(name)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    source = str(place) if name == "reasoner" or place.exists() else name
    if place.suffix == ".gguf":
        source, options["gguf_file"] = str(place.parent), place.name
        if not place.is_file():
            raise BadInput(f"--model is '{name}'; there is no such file")
    elif place.is_absolute() and not place.exists():
        raise BadInput(f"--model is '{name}'; there is no such folder")
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise BadInput(
            f"--model is '{name}', which does not load as a folder, .gguf file or hub name: {reason}"
        ) from error
    if device == "cpu" and model.num_parameters() < SMALL:
        torch.set_num_threads(1)
    try:
        return model.to(device).eval(), tokenizer
    except RuntimeError as error:
        raise BadInput(f"--device is '{device}', which is not usable here: {str(error).splitlines()[0]}") from error


def same_place(name: str, place: Path) -> bool:
    """Whether a model name means the folder `place`."""
    return name == "reasoner" or (Path(name).exists() and Path(name).resolve() == place.resolve())
