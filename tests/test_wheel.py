"""The wheel works in a folder full of decoys, with nothing of this checkout on the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT


def test_an_installed_wheel_runs_among_decoys(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", ROOT], check=True)
    (wheel,) = (tmp_path / "wheels").glob("skipkv-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    for decoy in ("evaluation.py", "cli.py", "steering.py", "patches.py", "data.py"):
        (tmp_path / decoy).write_text("raise RuntimeError('a decoy was imported')\n")
    code = "import skipkv, sys; print(skipkv.__file__); from skipkv.cli.app import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "compare",
            "--baselines",
            "h2o",
            "--budgets",
            "0.5",
            "--limit",
            "4",
            "--out",
            "out",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["rows"]) == 4
