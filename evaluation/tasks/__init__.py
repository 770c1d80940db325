"""Tasks: problems with their right answers, and how a model is asked. One file each, one line each in the table."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from skipkv.errors import BadInput, require_at_least
from skipkv.evaluation.tasks import aime24, gsm8k, ledger, livecodebench, math500
from skipkv.evaluation.tasks.mathematics import problem_of
from skipkv.evaluation.tasks.problem import BOXED, Problem, prompt_for
from skipkv.evaluation.tasks.source import FILES, Hub, local_rows

__all__ = ["TASKS", "Problem", "load", "max_new_tokens", "prompt_for"]


@dataclass(frozen=True)
class Task:
    """Where a task's problems are, what is said behind each question, and how long an answer may be, in tokens."""

    source: Hub | Path
    instruction: str
    max_new_tokens: int


TASKS = {
    "ledger": Task(ledger.TEST, "", ledger.MAX_NEW_TOKENS),
    "ledger-validation": Task(ledger.VALIDATION, "", ledger.MAX_NEW_TOKENS),
    "gsm8k": Task(gsm8k.HUB, BOXED, gsm8k.MAX_NEW_TOKENS),
    "math500": Task(math500.HUB, BOXED, math500.MAX_NEW_TOKENS),
    "livecodebench": Task(livecodebench.HUB, "", livecodebench.MAX_NEW_TOKENS),
    "aime24": Task(aime24.HUB, BOXED, aime24.MAX_NEW_TOKENS),
}
DEFAULT_MAX_NEW_TOKENS = 1024  # of a file, which says nothing of it


def task_of(name: str) -> Task:
    """The task of that name or file.

    Raises:
        BadInput: it is neither.
    """
    if name in TASKS:
        return TASKS[name]
    if name.endswith(FILES):
        return Task(Path(name), BOXED, DEFAULT_MAX_NEW_TOKENS)
    raise BadInput(f"--task is '{name}'; it must be one of {', '.join(TASKS)}, or a file: {', '.join(FILES)}")


def max_new_tokens(name: str, given: int | None = None) -> int:
    """How long an answer of the task may be: what is given, or else the task's own length."""
    return task_of(name).max_new_tokens if given is None else given


def load(name: str, limit: int | None = None, *, start: int = 0, shuffle: bool = False, seed: int = 0) -> list[Problem]:
    """The problems of a task by its name, or of a file.

    Args:
        limit, start: so many problems, from this one on (counted from 0).
        shuffle: draw another order first, by the seed.

    Raises:
        BadInput: the task is unknown, its file missing or broken, or nothing is left of it.
    """
    if limit is not None:
        require_at_least("--limit", limit, 1)
    require_at_least("--start", start, 0)
    task = task_of(name)
    rows = local_rows(task.source) if isinstance(task.source, Path) else enumerate(task.source.rows(), start=1)
    problems = [
        livecodebench.problem_of(row, f"'{name}' line {number}")
        if all(column in row for column in livecodebench.COLUMNS)
        else problem_of(row, f"'{name}' line {number}", task.instruction)
        for number, row in rows
    ]
    if shuffle:
        random.Random(seed).shuffle(problems)
    if start >= len(problems):
        raise BadInput(f"--start is {start}, but '{name}' has {len(problems)} problems")
    return problems[start:][:limit]
