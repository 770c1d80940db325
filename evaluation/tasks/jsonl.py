"""Problems from a JSONL file: rows with `question` or `problem`, and `answer` (GSM8K's "#### n" understood)."""

from __future__ import annotations

import json
from pathlib import Path

from skipkv.errors import BadInput
from skipkv.evaluation.tasks.problem import BOXED, Problem


def load(path: Path, instruction: str = BOXED) -> list[Problem]:
    """Reads the file.

    Raises:
        BadInput: it is missing, empty, or a line is not such a row.
    """
    if not path.is_file():
        raise BadInput(f"--task is '{path}'; there is no such file")
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = row["question"] if "question" in row else row["problem"]
            answer = str(row["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"'{path}' line {number} is no problem; each line is an object with question (or problem) and answer"
            ) from error
        problems.append(Problem(question, answer.split("####")[-1].strip(), instruction))
    if not problems:
        raise BadInput(f"'{path}' holds no problem")
    return problems
