"""Where the parts of a supported model are. A new family is a line in FAMILIES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from skipkv.cache import Shape
from skipkv.errors import BadInput


@dataclass(frozen=True)
class Family:
    """Names of a model's parts, as attributes below one another."""

    decoder: str = "model"
    layers: str = "layers"
    attention: str = "self_attn"
    norm: str = "norm"


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "mistral": Family(),
    "phi3": Family(),
}


@dataclass(frozen=True)
class Parts:
    """The parts of one model that the patch touches."""

    decoder: nn.Module
    layers: list[nn.Module]
    attentions: list[nn.Module]
    norm: nn.Module
    shape: Shape


def parts_of(model: Any) -> Parts:
    """Finds the parts of a transformers causal language model.

    Raises:
        BadInput: the model's family is not supported.
    """
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in FAMILIES:
        raise BadInput(f"model family '{kind}' is not supported; supported are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    decoder = getattr(model, family.decoder)
    layers = list(getattr(decoder, family.layers))
    attentions = [getattr(layer, family.attention) for layer in layers]
    config = model.config
    heads = config.num_attention_heads
    weights = [next(attention.parameters()) for attention in attentions]
    shape = Shape(
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        q_heads=heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        dtype=next(w.dtype for w in weights if w.dtype in (torch.float32, torch.float16, torch.bfloat16)),
        devices=tuple(weight.device for weight in weights),
    )
    return Parts(decoder, layers, attentions, getattr(decoder, family.norm), shape)
