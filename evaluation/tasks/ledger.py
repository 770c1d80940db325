"""The embedded task: arithmetic over named quantities, made by data/reasoner/training/ledger.py."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "data" / "ledger"
TEST, VALIDATION = FOLDER / "test.jsonl", FOLDER / "validation.jsonl"
MAX_NEW_TOKENS = 1024
