"""A run's folder: what was asked, and every finished answer as soon as it is there, so that a stopped run goes on.

`run.json` holds the settings that shape the answers, with versions; `answers.jsonl` gets one line per answer, flushed
to the disk. The same command goes on where it stopped; other settings are refused rather than mixed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import skipkv
from skipkv.errors import BadInput
from skipkv.files import write_atomically


@dataclass(frozen=True)
class Answer:
    """One graded answer; `truncated` answers ran into max_new_tokens and count as wrong.

    Attributes:
        method, budget, steered: which run it belongs to.
        index, sample: which problem, and which of its samples.
        text: all that the model wrote; answer: what stands behind "</think>".
        nonexec: non-execution sentences.
        seconds: of the batch between this answer and the one finished before it, so that they add up.
        peak_kv_bytes: keys and values that the batch held until now, at most.
    """

    method: str
    budget: int | None
    steered: bool
    index: int
    sample: int
    prompt: str
    text: str
    answer: str
    gold: str
    correct: bool
    truncated: bool
    prompt_tokens: int
    new_tokens: int
    nonexec: int
    seconds: float
    peak_kv_bytes: int


Run = tuple[str, int | None, bool]  # method, budget, steered


class RunFolder:
    """A folder for one run's results, and what was asked of it.

    Args:
        path: new, empty, or a run's that was begun with the same values.
        asked: what shapes the results: model, task, settings.

    Raises:
        BadInput: the folder holds something else.
    """

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path, self.asked = path, json.loads(json.dumps(asked))
        self.is_begun = (path / "run.json").exists()
        if self.is_begun:
            self._compare()
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadInput(f"--out is '{path}', which holds something that is no run; give a new or empty folder")

    def begin(self) -> None:
        """Notes what was asked, with versions: at the first result, when whatever could be refused was refused."""
        if not self.is_begun:
            noted = {"asked": self.asked, "versions": versions(), "commit": commit()}
            write_atomically(self.path / "run.json", json.dumps(noted, indent=1) + "\n")
            self.is_begun = True

    def _compare(self) -> None:
        try:
            before = json.loads((self.path / "run.json").read_text())["asked"]
        except (ValueError, KeyError) as error:
            raise BadInput(f"'{self.path / 'run.json'}' is broken; give --out another folder") from error
        for name in sorted({*before, *self.asked}):
            if before.get(name) != self.asked.get(name):
                raise BadInput(
                    f"--out '{self.path}' holds a run with {name} {before.get(name)}, not {self.asked.get(name)}; "
                    "give another folder, or remove this one"
                )


class Store:
    """The answers of a run so far, kept in a folder, or in memory only.

    Args:
        folder: where they are kept; None for memory.
        asked: what shapes the answers; see `RunFolder`, which may refuse it.
    """

    def __init__(self, folder: Path | None = None, asked: dict[str, Any] | None = None) -> None:
        self.folder = None if folder is None else RunFolder(folder, asked or {})
        self.answers = list(self._read(folder / "answers.jsonl")) if folder else []

    def of(self, run: Run) -> list[Answer]:
        """The answers of one run, by problem and sample."""
        found = (answer for answer in self.answers if (answer.method, answer.budget, answer.steered) == run)
        return sorted(found, key=lambda answer: (answer.index, answer.sample))

    def add(self, answer: Answer) -> None:
        """Keeps an answer; when this returns it is on the disk."""
        self.answers.append(answer)
        if self.folder:
            self.folder.begin()
            with (self.folder.path / "answers.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())

    @staticmethod
    def _read(path: Path) -> Iterable[Answer]:
        """The whole lines; a last line that a kill cut off is taken out of the file."""
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            write_atomically(path, whole)
        names = {field.name for field in fields(Answer)}
        for number, line in enumerate(whole.decode().splitlines(), start=1):
            try:
                row = json.loads(line)
                yield Answer(**{name: row[name] for name in names})
            except (ValueError, KeyError, TypeError) as error:
                raise BadInput(f"'{path}' line {number} is no answer of ours; give --out another folder") from error


def versions() -> dict[str, str]:
    """Of the packages that shape an answer."""
    return {"skipkv": skipkv.__version__} | {name: version(name) for name in ("torch", "transformers", "math-verify")}


def commit() -> str:
    """The commit of the checkout that runs, with a mark when it was changed; empty outside of one."""
    here = Path(__file__).resolve().parent
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()
