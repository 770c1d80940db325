"""SkipKV: a KV cache with a budget for reasoning models, evicted sentence by sentence, and steering that saves words.

The names below come from the project's rooms and are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "BadInput": "errors",
    "BudgetedCache": "cache",
    "FullKV": "policies",
    "H2O": "policies",
    "RKV": "policies",
    "SkipKV": "policies",
    "SnapKV": "policies",
    "StreamingLLM": "policies",
    "functions_of": "steering.functions",
    "generate": "patches.engine",
    "grade": "evaluation.grading",
    "label_sentences": "steering.functions",
    "load_vector": "steering.vectors",
    "patch": "patches.engine",
}

__all__ = sorted(_PUBLIC)

if TYPE_CHECKING:
    from skipkv.cache import BudgetedCache
    from skipkv.errors import BadInput
    from skipkv.evaluation.grading import grade
    from skipkv.patches.engine import generate, patch
    from skipkv.policies import H2O, RKV, FullKV, SkipKV, SnapKV, StreamingLLM
    from skipkv.steering.functions import functions_of, label_sentences
    from skipkv.steering.vectors import load_vector


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'skipkv' has no attribute '{name}'")
    return getattr(import_module(f"skipkv.{_PUBLIC[name]}"), name)
