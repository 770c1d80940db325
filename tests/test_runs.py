"""Runs survive: stopped at any moment, they go on without an answer twice or lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import skipkv
from skipkv import policies
from skipkv.cli.app import run as run_command
from skipkv.decoding import Settings
from skipkv.evaluation import runner, tasks
from skipkv.evaluation.store import Store

COMMAND = ["compare", "--baselines", "rkv", "--budgets", "100", "--limit", "8", "--batch-size", "4"]


def told(folder: Path) -> list[tuple[Any, ...]]:
    """All answers of a run, without what the clock says."""
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return sorted((r["method"], r["budget"] or 0, r["steered"], r["index"], r["text"], r["correct"]) for r in rows)


def test_killed_at_random_moments_it_finishes_as_if_undisturbed(tmp_path: Path) -> None:
    assert run_command([*COMMAND, "--out", str(tmp_path / "calm")]) == 0
    command = [sys.executable, "-m", "skipkv.cli", *COMMAND, "--out", str(tmp_path / "killed")]
    source, kills = random.Random(0), 0
    while kills < 20:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        answers = tmp_path / "killed" / "answers.jsonl"
        before = answers.stat().st_size if answers.exists() else 0
        while process.poll() is None and (answers.stat().st_size if answers.exists() else 0) == before:
            time.sleep(0.01)  # until it is past loading, and writes
        time.sleep(source.uniform(0, 0.3))
        if process.poll() is not None:
            break  # it came to its end between the kills
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 3
    assert run_command([*COMMAND, "--out", str(tmp_path / "killed")]) == 0
    assert told(tmp_path / "killed") == told(tmp_path / "calm")
    rows = [json.loads((tmp_path / name / "results.json").read_text())["rows"] for name in ("calm", "killed")]
    assert [row["accuracy"] for row in rows[0]] == [row["accuracy"] for row in rows[1]]


def test_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    short = ["patch-and-eval", "--budget", "100", "--limit", "2", *out]
    assert run_command(short) == 0
    assert run_command([*short, "--tau", "0.9"]) == 2
    assert "tau 0.95, not 0.9" in capsys.readouterr().err
    answers = (tmp_path / "run" / "answers.jsonl").read_bytes()
    assert run_command(short) == 0 and (tmp_path / "run" / "answers.jsonl").read_bytes() == answers
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    assert run_command([*short[:-1], str(tmp_path / "other")]) == 2


def test_a_line_cut_off_by_a_kill_is_done_again(tmp_path: Path, reasoner: tuple[Any, Any]) -> None:
    problems, settings = tasks.load("ledger", 3), Settings(batch_size=3)

    def answered() -> list[str]:
        store = Store(tmp_path / "run", {"limit": 3})
        return [a.text for a in runner.run(*reasoner, problems, policies.RKV(budget=100), settings, store=store)]

    first, path = answered(), tmp_path / "run" / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    assert answered() == first
    assert len(path.read_text().splitlines()) == 3


def test_out_of_memory_halves_the_batch_and_goes_on(
    reasoner: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problems = tasks.load("ledger", 6)
    expected = runner.run(*reasoner, problems, policies.RKV(budget=100), Settings(batch_size=6))
    generate, sizes = skipkv.generate, []

    def scarce(*arguments: Any, batch_size: int, **options: Any) -> Iterator[Any]:
        sizes.append(batch_size)
        results = generate(*arguments, batch_size=batch_size, **options)
        yield next(results)
        if batch_size > 2:
            raise torch.OutOfMemoryError("no memory left")
        yield from results

    monkeypatch.setattr(runner, "generate", scarce)
    found = runner.run(*reasoner, problems, policies.RKV(budget=100), Settings(batch_size=6))
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    assert sizes == [6, 3, 1] and len([r for r in caplog.records if "halved" in r.message]) == 2


def test_samples_differ_and_do_not_depend_on_the_batch(reasoner: tuple[Any, Any]) -> None:
    problems, policy = tasks.load("ledger", 3), policies.SkipKV(budget=100)
    settings = Settings(batch_size=5, temperature=1.0, top_p=0.95, seed=3)
    answers = runner.run(*reasoner, problems, policy, settings, samples=3)
    assert [(answer.index, answer.sample) for answer in answers] == [(i, s) for i in range(3) for s in range(3)]
    assert len({answer.text for answer in answers}) > 3
    alone = runner.run(*reasoner, problems, policy, Settings(1, temperature=1.0, top_p=0.95, seed=3), samples=3)
    assert [answer.text for answer in alone] == [answer.text for answer in answers]
    assert set(runner.summarise(answers).pass_at) == {2}
