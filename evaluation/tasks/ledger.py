"""The embedded task: arithmetic over named quantities, made by data/reasoner/training/ledger.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from skipkv.evaluation.tasks import jsonl
from skipkv.evaluation.tasks.problem import Problem

FOLDER = Path(__file__).resolve().parent.parent.parent / "data" / "ledger"


def load(split: str) -> list[Problem]:
    """The problems of a split that ships, "test" or "validation"; the reasoner needs no instruction."""
    return jsonl.load(FOLDER / f"{split}.jsonl", instruction="")


TASKS = {"ledger": partial(load, "test"), "ledger-validation": partial(load, "validation")}
