"""Files that are either whole or not there, files of JSON lines, and pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from skipkv.errors import BadInput


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes to a temporary file beside `path`, then renames it; folders above are made.

    Raises:
        OSError: the place cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_jsonl(path: Path, option: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of every line that is not blank: at least one.

    Args:
        option: which option named the file, for messages.

    Raises:
        BadInput: the file is missing or empty, or a line is no JSON object.
    """
    if not path.is_file():
        raise BadInput(f"{option} is '{path}'; there is no such file")
    empty = True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"'{path}' line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadInput(f"'{path}' line {number} is no JSON object")
        empty = False
        yield number, row
    if empty:
        raise BadInput(f"{option} is '{path}', which holds nothing")


def new_figure(columns: int = 1) -> tuple[Any, Any]:
    """A matplotlib figure with one pair of axes, or `columns` of them side by side, drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(6.4 * (1 + 0.7 * (columns - 1)), 4), layout="constrained")
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure as PNG, whole or not at all, and closes it."""
    import matplotlib.pyplot as plt

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    plt.close(figure)
    write_atomically(path, drawn.getvalue())
