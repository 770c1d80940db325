"""Small models of every family, and where outside inputs lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

torch.set_num_threads(1)  # models this small are slower on many threads

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3")
DELIMITERS = [7, 9, 11, 13, 20]
EOS = 3


def tiny_model(family: str, seed: int = 0) -> Any:
    """A random model of 3 layers with weights large enough that its tokens vary; vocabulary 64."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=EOS,
        **({"sliding_window": None} if family == "Mistral" else {}),
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def random_prompts(lengths: tuple[int, ...], seed: int = 1) -> list[list[int]]:
    """Prompts of random token ids."""
    source = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 64, (length,), generator=source).tolist() for length in lengths]


@pytest.fixture(scope="session")
def reasoner() -> tuple[Any, Any]:
    """The model and tokenizer that ship."""
    from skipkv.evaluation.models import load

    return load("reasoner")
