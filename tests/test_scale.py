"""The same answers from a pool of Ray workers, one of which dies on the way. Skips without Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skipkv import policies
from skipkv.cli.app import run
from skipkv.decoding import Settings
from skipkv.evaluation import runner, tasks

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
        assert killed and pool.workers[0] is not killed[0]
    finally:
        pool.close()
    assert [(answer.index, answer.text) for answer in found] == [(answer.index, answer.text) for answer in expected]


def test_compare_on_ray_gives_what_compare_gives(tmp_path: Path) -> None:
    command = ["compare", "--baselines", "rkv", "--budgets", "0.5", "--limit", "6"]
    assert run([*command, "--out", str(tmp_path / "one")]) == 0
    assert run([*command, "--ray", "local", "--ray-workers", "2", "--out", str(tmp_path / "many")]) == 0
    rows = [json.loads((tmp_path / name / "results.json").read_text())["rows"] for name in ("one", "many")]
    for one, many in zip(*rows, strict=True):
        for name in ("method", "budget", "accuracy", "mean_new_tokens", "nonexec_per_answer"):
            assert one[name] == many[name]
