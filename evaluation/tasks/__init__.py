"""Tasks: problems with their right answers, and how a model is asked. One file each, one line each in the table."""

from __future__ import annotations

from pathlib import Path

from skipkv.errors import BadInput
from skipkv.evaluation.tasks import jsonl, ledger
from skipkv.evaluation.tasks.problem import Problem, prompt_for

__all__ = ["TASKS", "Problem", "load", "prompt_for"]

TASKS = {**ledger.TASKS}


def load(name: str, limit: int | None = None) -> list[Problem]:
    """The problems of a task by its name, or of a JSONL file.

    Raises:
        BadInput: the task is unknown, the file is missing or broken, or there is nothing in it.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"--limit is {limit}; it must be at least 1 problem")
    if name in TASKS:
        problems = TASKS[name]()
    elif name.endswith(".jsonl"):
        problems = jsonl.load(Path(name))
    else:
        raise BadInput(f"--task is '{name}'; it must be one of {', '.join(TASKS)} or a .jsonl file")
    return problems[:limit]
