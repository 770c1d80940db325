"""Tasks and models by their hub names, downloaded from a stand-in of the hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow
import pyarrow.parquet
import pytest

from skipkv.evaluation.models import REASONER

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIGS = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
- config_name: socratic
  data_files: [{split: test, path: socratic/test-*}]
---
"""
CODE = {
    "question_content": "Add two numbers.",
    "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": "[]",
    "starter_code": "",
    "metadata": "{}",
}


class StandIn(BaseHTTPRequestHandler):
    """As much of the hub's interface as `datasets` and `transformers` read; serves KIND/OWNER/NAME/FILES below root."""

    root: Path

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[0] == "api":
            self.tell(*parts[1:])
        else:
            kind, owner, name, _, _, *path = parts if parts[0] == "datasets" else ["models", *parts]
            file = self.root.joinpath(kind, owner, name, *path)
            self.send(file.read_bytes() if file.is_file() else None)

    do_HEAD = do_GET

    def tell(self, repositories: str, owner: str = "", name: str = "", *rest: str) -> None:
        """What the hub knows of a repository, or the tree of its files."""
        place = self.root / repositories / owner / name
        paths = {path.relative_to(place).as_posix(): path for path in place.rglob("*")}
        if not name or not place.is_dir():
            self.send(None)
        elif rest and rest[0] == "tree":
            self.send_json(
                [
                    {"type": kind, "path": path, "size": found.stat().st_size, "oid": ""}
                    for path, found in paths.items()
                    for kind in ["file" if found.is_file() else "directory"]
                    if path.startswith("/".join(rest[2:]))
                ]
            )
        else:
            files = [{"rfilename": path} for path, found in paths.items() if found.is_file()]
            self.send_json({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": files})

    def send_json(self, told: Any) -> None:
        self.send(json.dumps(told).encode())

    def send(self, content: bytes | None) -> None:
        """A file, or the part of it that is asked for; nothing found where None."""
        self.send_response(404 if content is None else 206 if self.headers.get("Range") else 200)
        content = content or b""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        for name, value in {
            "Content-Length": len(part),
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "X-Error-Code": "EntryNotFound",
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a hub with the public sets, as they lie there, and our reasoner."""
    root = tmp_path_factory.mktemp("hub")
    for name, row in {
        "openai/gsm8k/main/train-00000-of-00001.parquet": {"question": "Seven less two?", "answer": "5\n#### 5"},
        "openai/gsm8k/main/test-00000-of-00001.parquet": {"question": "Six times two?", "answer": "12\n#### 12"},
        "openai/gsm8k/socratic/test-00000-of-00001.parquet": {"question": "Why six?", "answer": "6\n#### 6"},
        "HuggingFaceH4/MATH-500/test.jsonl": {"problem": "Find $x$.", "solution": r"\boxed{2}", "answer": "2"},
        "HuggingFaceH4/aime_2024/data/train-00000-of-00001.parquet": {"problem": "Aya walks.", "answer": "204"},
        "livecodebench/code_generation_lite/test.jsonl": CODE,
    }.items():
        path = root / "datasets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
        else:
            path.write_text(json.dumps(row) + "\n")
    (root / "datasets" / "openai" / "gsm8k" / "README.md").write_text(CONFIGS)
    shutil.copytree(REASONER, root / "models" / "our" / "reasoner")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("StandInOfRoot", (StandIn,), {"root": root}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def skipkv(hub: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command whose downloads go to the stand-in."""
    ours = {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    command = [sys.executable, "-m", "skipkv.cli", "patch-and-eval", "--model", "our/reasoner", *arguments]
    return subprocess.run(command, env={**os.environ, **ours}, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("task", "asked"),
    [
        ("gsm8k", "Six times two?"),
        ("math500", "Find $x$."),
        ("aime24", "Aya walks."),
        ("livecodebench", "Add two numbers."),
    ],
)
def test_tasks_load_by_their_hub_names(hub: str, tmp_path: Path, task: str, asked: str) -> None:
    done = skipkv(hub, tmp_path, "--task", task, "--show-prompt")
    assert done.returncode == 0, done.stderr
    assert asked in done.stdout and done.stderr == ""


def test_a_model_loads_by_its_hub_name(hub: str, tmp_path: Path) -> None:
    done = skipkv(hub, tmp_path / "home", "--limit", "2", "--vectors", "none", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["model"] == "our/reasoner"


def test_what_the_hub_does_not_have_is_told_in_one_line(hub: str, tmp_path: Path) -> None:
    done = skipkv(hub, tmp_path, "--model", "our/nothing", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "our/nothing" in done.stderr
