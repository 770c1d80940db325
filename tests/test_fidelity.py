"""Fidelity: what is fed in chunks is what decoding would have kept; no loss without eviction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skipkv import policies
from skipkv.cli.app import run
from skipkv.evaluation.fidelity import compare_chunk, log_probabilities, measure, read_text
from skipkv.patches.engine import patch

THINKING = "Wait, let me check Ann: Ben plus 9 again, 12 + 9 = 21, so Ann = 21.\nSo the answer is 21.\n" * 8
PROMPT = "<|user|>- Ann: Ben plus 9.\n- Ben: 12.\nHow many keys does Ann have?<|assistant|><think>\n"


@pytest.mark.parametrize("name", [name for name in policies.POLICIES if name != "full"])
def test_chunks_evict_what_steps_evict(reasoner: tuple[Any, Any], name: str) -> None:
    model, tokenizer = reasoner
    text, policy = read_text(THINKING, tokenizer, 150, PROMPT), policies.build(name, budget=40)
    chunks = torch.cat(list(log_probabilities(model, tokenizer, text, policy, 16)))
    with patch(model, policy, tokenizer=tokenizer, interval=16) as binding, torch.no_grad():
        cache = binding.new_cache(1)
        cache.select([0], prompt=True)
        binding.logits(text.prompt[None], None, cache)
        steps = []
        for token in text.tokens:
            cache.select([0], prompt=False)
            steps.append(binding.logits(token.view(1, 1), None, cache)[0, 0])
    assert cache.compressions > 5
    torch.testing.assert_close(chunks, torch.stack(steps).log_softmax(dim=-1), rtol=1e-3, atol=1e-3)


def test_without_eviction_nothing_is_lost(reasoner: tuple[Any, Any]) -> None:
    model, tokenizer = reasoner
    text = read_text(THINKING, tokenizer, 150)
    (found,) = measure(model, tokenizer, [text], [policies.SkipKV(budget=400)])
    row = found.row()
    assert row["agreement"] == 1.0 and abs(row["added_nll"]) < 1e-4 and abs(row["kl"]) < 1e-4


def test_the_measures_by_hand() -> None:
    full, found = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    measured = compare_chunk(full, found, torch.tensor([0, 1]))
    divergence = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    torch.testing.assert_close(measured, torch.tensor([[np.log(2), divergence, 0.0], [0.0, 0.0, 1.0]]).float())


def test_tokens_know_their_sentence(reasoner: tuple[Any, Any]) -> None:
    text = read_text(THINKING, reasoner[1], 10_000)
    pieces = reasoner[1].convert_ids_to_tokens(text.tokens.tolist())
    assert set(text.kinds[["9" in piece for piece in pieces]]) == {"number"}
    assert text.functions[0] == "verify" and text.functions[pieces.index("So")] == "conclude"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces.jsonl"
    traces.write_text("".join(json.dumps({"thinking": THINKING}) + "\n" for _ in range(2)))
    command = ["fidelity", "--traces", str(traces), "--methods", "h2o", "skipkv", "--budgets", "40", "60"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "fidelity.json").read_text())["rows"]
    assert [(row["method"], row["budget"], row["traces"]) for row in rows] == [
        (name, budget, 2) for budget in (40, 60) for name in ("h2o", "skipkv")
    ]
    for row in rows:
        assert row["tokens"] == sum(part["tokens"] for part in row["by_kind"].values())
        assert 0 < row["agreement"] <= 1 and row["kl"] >= 0
    assert (tmp_path / "out" / "fidelity.png").exists()
    # A method more: what is measured is not measured again; another text is refused.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "measured").iterdir()}
    command[command.index("skipkv")] = "rkv"
    assert run([*command, "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out" / "measured").glob("*.npy"))) == 12
    assert {path: path.stat().st_mtime_ns for path in before} == before
    again = json.loads((tmp_path / "out" / "fidelity.json").read_text())["rows"]
    assert [row for row in again if row["method"] == "h2o"] == [row for row in rows if row["method"] == "h2o"]
    traces.write_text(json.dumps({"thinking": THINKING[: len(THINKING) // 2]}) + "\n")
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    assert "holds a run with traces" in capsys.readouterr().err


def test_fractions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fidelity", "--traces", "none.jsonl", "--budgets", "0.5", "--out", str(tmp_path / "out")]) == 2
    assert "give slots" in capsys.readouterr().err
