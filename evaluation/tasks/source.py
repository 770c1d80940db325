"""Rows of a public set: from the Hugging Face hub, or from a local file with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipkv.errors import BadInput
from skipkv.files import read_jsonl

FILES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Hub:
    """Where a set lies on the hub."""

    name: str
    split: str
    config: str | None = None
    data_files: str | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Downloads it, or takes it from the cache of `datasets`.

        Raises:
            BadInput: it cannot be reached.
        """
        from datasets import disable_progress_bars, load_dataset

        disable_progress_bars()
        try:
            yield from load_dataset(self.name, self.config, split=self.split, data_files=self.data_files)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().split("\n")[0]
            raise BadInput(
                f"'{self.name}' does not load from the hub ({reason}); give --task a local .jsonl or .parquet file"
            ) from error


def local_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of each row of a JSONL or Parquet file.

    Raises:
        BadInput: the file is missing, empty or broken.
    """
    if path.suffix != ".parquet":
        yield from read_jsonl(path, "--task")
        return
    if not path.is_file():
        raise BadInput(f"--task is '{path}'; there is no such file")
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise BadInput(f"--task is '{path}', which does not read as Parquet: {error}") from error
    if not rows:
        raise BadInput(f"--task is '{path}', which holds nothing")
    yield from enumerate(rows, start=1)
