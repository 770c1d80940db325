"""What the README shows, runs."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert "\\boxed{42}" in capsys.readouterr().out
