"""Budgets as the user writes them: slots, or a fraction of FullKV's mean final length."""

from __future__ import annotations

import json
from pathlib import Path

from skipkv.errors import BadInput


def parse(text: str) -> int | float:
    """An int (slots) or a float in (0, 1) (a fraction).

    Raises:
        BadInput: it is neither.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 < value < 1:
        return value
    if value >= 1 and value.is_integer():
        return int(value)
    raise BadInput(f"budget is '{text}'; it must be a whole number of slots, such as 512, or a fraction, such as 0.25")


def in_slots(budget: int | float, full_length: float | None) -> int:
    """The budget in slots per head.

    Raises:
        BadInput: it is a fraction and FullKV's mean final length is not known.
    """
    if isinstance(budget, int):
        return budget
    if full_length is None:
        raise BadInput(
            f"budget is {budget}, a fraction of FullKV's mean final length; give that with --full-length N or "
            "--full-results FILE (results.json of a compare run)"
        )
    return max(1, round(budget * full_length))


def length_from(path: Path) -> float:
    """FullKV's mean final length out of a results.json.

    Raises:
        BadInput: the file is missing, or has no such number.
    """
    try:
        return float(json.loads(path.read_text())["full_length"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--full-results is '{path}'; it must be the results.json of a run that measured FullKV"
        ) from error
