"""Problems with one right answer: rows with `question` or `problem`, and `answer`. All mathematical sets are such."""

from __future__ import annotations

from typing import Any

from skipkv.errors import BadInput
from skipkv.evaluation.tasks.problem import BOXED, Problem


def problem_of(row: dict[str, Any], where: str, instruction: str = BOXED) -> Problem:
    """A row as a problem; of a GSM8K answer what stands behind "####" counts, without its thousands' commas.

    Raises:
        BadInput: the row lacks question or answer; `where` says which one it is.
    """
    question = row.get("question", row.get("problem"))
    if not isinstance(question, str) or row.get("answer") is None:
        raise BadInput(f"{where} is no problem; each row needs question (or problem) and answer")
    answer = str(row["answer"])
    if "####" in answer:
        answer = answer.split("####")[-1].replace(",", "")
    return Problem(question, answer.strip(), instruction)
