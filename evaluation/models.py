"""Loads the model and tokenizer under test: a hub name, a folder, a .gguf file, or the reasoner that ships."""

from __future__ import annotations

from importlib.util import find_spec
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
LOADING_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError)
SMALL = 20_000_000  # parameters under which threads wait for each other longer than they work


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model, without the model; see `load`."""
    source, options = source_of(name, trust_remote_code)
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except LOADING_ERRORS as error:
        raise unloadable(name, error) from error


def load(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    device_map: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Model, in evaluation mode on its device, and tokenizer.

    Args:
        name: "reasoner", a folder, a .gguf file, or a hub name.
        device_map: "auto" spreads a model larger than one GPU over all of them (accelerate); `device` is not read then.
        trust_remote_code: run code that comes with a hub model; off unless the user asks.

    Raises:
        BadInput: nothing loads from there, or device or dtype is unknown.
    """
    if dtype not in DTYPES:
        raise BadInput(f"--dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}")
    if device_map and not find_spec("accelerate"):
        raise BadInput(f"--device-map is '{device_map}', which needs accelerate: pip install accelerate")
    source, options = source_of(name, trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], device_map=device_map, **options)
    except LOADING_ERRORS as error:
        raise unloadable(name, error) from error
    if device == "cpu" and model.num_parameters() < SMALL:
        torch.set_num_threads(1)
    try:
        return (model if device_map else model.to(device)).eval(), tokenizer
    except RuntimeError as error:
        raise BadInput(f"--device is '{device}', which is not usable here: {str(error).splitlines()[0]}") from error


def source_of(name: str, trust_remote_code: bool) -> tuple[str, dict[str, Any]]:
    """What transformers loads from, and with which options.

    Raises:
        BadInput: a file or folder is named that is not there.
    """
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
    return source, options


def unloadable(name: str, error: Exception) -> BadInput:
    """What to say of a model that does not load."""
    reason = str(error).strip().split("\n")[0]
    return BadInput(f"--model is '{name}', which does not load as a folder, .gguf file or hub name: {reason}")


def same_place(name: str, place: Path) -> bool:
    """Whether a model name means the folder `place`."""
    return name == "reasoner" or (Path(name).exists() and Path(name).resolve() == place.resolve())
