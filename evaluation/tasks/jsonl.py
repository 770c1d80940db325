"""Problems from a JSONL file: rows with `question` or `problem`, and `answer` (GSM8K's "#### n" understood)."""

from __future__ import annotations

from pathlib import Path

from skipkv.errors import BadInput
from skipkv.evaluation.tasks.problem import BOXED, Problem
from skipkv.files import read_jsonl


def load(path: Path, instruction: str = BOXED) -> list[Problem]:
    """Reads the file.

    Raises:
        BadInput: it is missing, empty, or a line is not such a row.
    """
    problems = []
    for number, row in read_jsonl(path, "--task"):
        question = row.get("question", row.get("problem"))
        if not isinstance(question, str) or "answer" not in row:
            raise BadInput(f"'{path}' line {number} is no problem; each line needs question (or problem) and answer")
        problems.append(Problem(question, str(row["answer"]).split("####")[-1].strip(), instruction))
    return problems
