"""LiveCodeBench, code generation (Jain et al., arXiv:2403.07974): programs, judged by running their tests."""

from __future__ import annotations

import base64
import json
import pickletools
import re
import zlib
from dataclasses import dataclass
from typing import Any

from skipkv.errors import BadInput
from skipkv.evaluation.sandbox import run_code
from skipkv.evaluation.tasks.problem import Problem
from skipkv.evaluation.tasks.source import Hub
from skipkv.thinking import answer_of

HUB = Hub("json", "train", data_files="hf://datasets/livecodebench/code_generation_lite/test.jsonl")
MAX_NEW_TOKENS = 10_000
COLUMNS = ("question_content", "public_test_cases", "private_test_cases")

ASKED = "\n\nWrite a Python program that solves it. It reads standard input and prints to standard output."
ASKED_WITH_STARTER = "\n\nComplete this code; keep its names:\n```python\n{starter}\n```"
FENCED = "\nPut the whole program into one ```python block at the end of your answer."

# Reads one argument per line as JSON, calls the method that is asked for, and prints what it returns as JSON.
CALL = """

import json as _json, sys as _sys
_arguments = [_json.loads(line) for line in _sys.stdin.read().splitlines() if line.strip()]
_called = Solution().{name} if "Solution" in globals() else {name}
print(_json.dumps(_called(*_arguments)))
"""
PRELUDE = "from typing import *\nfrom collections import *\nfrom math import *\nimport collections, heapq, math\n"


@dataclass(frozen=True)
class CodeProblem(Problem):
    """A problem whose answer is a program.

    Attributes:
        tests: (input, expected output) of every test, public and private.
        function: the method to call; None where the program reads standard input.
    """

    tests: tuple[tuple[str, str], ...] = ()
    function: str | None = None

    def is_right(self, text: str) -> bool:
        """Whether the last code block behind the thinking passes every test."""
        blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", answer_of(text), re.DOTALL)
        if not blocks:
            return False
        code = PRELUDE + blocks[-1] + (CALL.format(name=self.function) if self.function else "")
        return all(self._passes(code, given, expected) for given, expected in self.tests)

    def _passes(self, code: str, given: str, expected: str) -> bool:
        outcome = run_code(code, given)
        return outcome.ended == "ok" and (
            same_value(outcome.output, expected) if self.function else same_lines(outcome.output, expected)
        )


def same_lines(output: str, expected: str) -> bool:
    """Line by line, spaces at the ends aside; numbers count by value."""
    lines, others = (
        [line.split() for line in text.strip().splitlines() if line.strip()] for text in (output, expected)
    )
    return len(lines) == len(others) and all(
        len(a) == len(b) and all(map(same_word, a, b)) for a, b in zip(lines, others, strict=True)
    )


def same_word(word: str, other: str) -> bool:
    """Equal as text, or as decimal numbers within 1e-9."""
    if word == other:
        return True
    if not all(re.fullmatch(r"[-+]?\d*\.\d+(e[-+]?\d+)?|[-+]?\d+", one) for one in (word, other)):
        return False
    return abs(float(word) - float(other)) <= 1e-9 * max(1.0, abs(float(other)))


def same_value(output: str, expected: str) -> bool:
    """Equal as JSON."""
    try:
        return bool(json.loads(output) == json.loads(expected))
    except ValueError:
        return False


def problem_of(row: dict[str, Any], where: str) -> CodeProblem:
    """A row as a problem.

    Raises:
        BadInput: a column is missing, or its tests cannot be read: that is an error of the data, never a pass.
    """
    try:
        cases = json.loads(row["public_test_cases"]) + private_cases(row["private_test_cases"])
        tests = tuple((str(case["input"]), str(case["output"])) for case in cases)
        function = json.loads(row.get("metadata") or "{}").get("func_name")
        starter = row.get("starter_code") or ""
        question = row["question_content"]
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise BadInput(f"{where} is no problem of LiveCodeBench that can be read: {error}") from error
    if not tests:
        raise BadInput(f"{where} has no tests")
    asked = ASKED_WITH_STARTER.format(starter=starter) if starter else ASKED
    return CodeProblem(question, "", asked + FENCED, tests, function)


def private_cases(packed: str) -> list[dict[str, Any]]:
    """Private tests: JSON, or base64 of zlib of a pickle that holds JSON, which is read without unpickling.

    Raises:
        ValueError: it is neither.
    """
    try:
        found = json.loads(packed)
    except ValueError:
        found = json.loads(pickled_text(zlib.decompress(base64.b64decode(packed, validate=True))))
    if not isinstance(found, list):
        raise ValueError("private tests are no list")
    return found


def pickled_text(content: bytes) -> str:
    """The one text in a pickle that holds nothing else; its operations are read, none is carried out.

    Raises:
        ValueError: it holds anything else.
    """
    texts = []
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"):
            texts.append(argument)
        elif operation.name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"):
            raise ValueError(f"private tests are a pickle of more than a text ({operation.name})")
    if len(texts) != 1:
        raise ValueError("private tests are a pickle of no text")
    return str(texts[0])
