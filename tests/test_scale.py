"""The same answers from a pool of Ray workers, one of which dies on the way. Skips without Ray."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from skipkv import policies
from skipkv.cli.app import run
from skipkv.decoding import Settings
from skipkv.evaluation import runner, tasks
from skipkv.steering.controller import ThinkTokens
from skipkv.steering.vectors import SteeringVector

ray = pytest.importorskip("ray")


def test_a_lost_workers_problems_are_done_again(reasoner: tuple[Any, Any]) -> None:
    from skipkv.evaluation.scale import Pool

    problems, policy, settings = tasks.load("ledger", 24), policies.SkipKV(budget=100), Settings(batch_size=2)
    expected = runner.run(*reasoner, problems, policy, settings)
    pool = Pool("local", "reasoner", {}, workers=2)
    try:
        killed = []

        def kill_one() -> None:
            if not killed:
                killed.append(pool.workers[0])
                ray.kill(pool.workers[0])

        found = runner.run(None, reasoner[1], problems, policy, settings, answerer=pool.answers_of, finished=kill_one)
        assert killed
        for _ in range(600):
            if len(pool.workers) == 2 and killed[0] not in pool.workers:
                break
            time.sleep(0.1)
        assert len(pool.workers) == 2 and killed[0] not in pool.workers
    finally:
        pool.close()
    assert [(answer.index, answer.text) for answer in found] == [(answer.index, answer.text) for answer in expected]


WORKERS = ["--ray", "local", "--ray-workers", "2"]


def test_compare_on_ray_gives_what_compare_gives(tmp_path: Path) -> None:
    command = ["compare", "--baselines", "rkv", "--budgets", "0.5", "--limit", "6"]
    command += ["--task", "ledger", "ledger-validation", "--seed", "0", "1", "--temperature", "0.6"]
    assert run([*command, "--out", str(tmp_path / "one")]) == 0
    assert run([*command, *WORKERS, "--out", str(tmp_path / "many")]) == 0
    folders = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(folders) == 4
    for folder in folders:
        rows = [json.loads((tmp_path / name / folder / "results.json").read_text())["rows"] for name in ("one", "many")]
        for one, many in zip(*rows, strict=True):
            for name in ("method", "budget", "accuracy", "mean_new_tokens", "nonexec_per_answer"):
                assert one[name] == many[name]


def test_a_run_begun_alone_goes_on_with_workers(tmp_path: Path) -> None:
    command = ["patch-and-eval", "--budget", "100", "--limit", "4", "--out", str(tmp_path / "run")]
    assert run(command) == 0
    answers = tmp_path / "run" / "answers.jsonl"
    whole = answers.read_text().splitlines(keepends=True)
    answers.write_text("".join(whole[:2]))
    assert run([*command, *WORKERS]) == 0
    texts = [sorted(json.loads(line)["text"] for line in lines) for lines in (whole, answers.read_text().splitlines())]
    assert texts[0] == texts[1]


def test_bad_input_is_told_from_afar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector, empty = tmp_path / "v.safetensors", tmp_path / "empty"
    SteeringVector(torch.ones(7), 1, ThinkTokens([1], [], [], [])).save(vector)
    empty.mkdir()
    for option, given, said in (("--vectors", vector, "7 numbers"), ("--model", empty, "does not load")):
        assert run(["patch-and-eval", option, str(given), *WORKERS, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("skipkv: ") and said in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()
