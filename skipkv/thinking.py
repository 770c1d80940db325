"""An answer as text: what the model thought, between its marks, and what it says behind them."""

from __future__ import annotations

THINK_START, THINK_END = "<think>", "</think>"


def thinking_of(text: str) -> str:
    """The part of an answer before "</think>", without "<think>"; all of it where there is no such mark."""
    return text.split(THINK_END)[0].split(THINK_START)[-1]


def answer_of(text: str) -> str:
    """The part of an answer behind its last "</think>"; all of it where there is no such mark."""
    return text.rsplit(THINK_END, 1)[-1]
