"""The commands as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from skipkv.cli.app import repeat_options, run
from skipkv.evaluation.models import DATA
from skipkv.steering.controller import ThinkTokens
from skipkv.steering.vectors import SteeringVector, load_vector


def test_several_values_after_one_option() -> None:
    assert repeat_options(["compare", "--baselines", "h2o", "rkv", "--limit", "3"]) == [
        "compare",
        "--baselines",
        "h2o",
        "--baselines",
        "rkv",
        "--limit",
        "3",
    ]


def test_compare_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    code = run(["compare", "--baselines", "h2o", "rkv", "--budgets", "0.25", "100", "--limit", "6", "--out", str(out)])
    assert code == 0
    results = json.loads((out / "results.json").read_text())
    assert results["task"] == "ledger"
    expected = [("full", False)] + [("h2o", False), ("rkv", False), ("skipkv", False), ("skipkv", True)] * 2
    assert [(row["method"], row["steered"]) for row in results["rows"]] == expected
    full, fraction, slots = results["rows"][0], results["rows"][1], results["rows"][5]
    assert fraction["budget"] == round(0.25 * results["full_length"]) and slots["budget"] == 100
    assert slots["peak_kv_bytes"] < full["peak_kv_bytes"]
    for row in results["rows"]:
        assert set(row) >= {
            "method",
            "budget",
            "budget_share",
            "n",
            "accuracy",
            "accuracy_ci",
            "mean_new_tokens",
            "nonexec_per_answer",
            "tokens_per_second",
            "peak_kv_bytes",
            "steered",
        }
        assert row["n"] == 6 and row["accuracy_ci"][0] <= row["accuracy"] <= row["accuracy_ci"][1]
    for row in results["rows"][1:]:
        assert row["to_full"]["accuracy"] == pytest.approx(row["accuracy"] - full["accuracy"])
        beside = [
            other for other in results["rows"] if other["budget"] == row["budget"] and other["method"] != "skipkv"
        ]
        expected = {other["method"]: row["accuracy"] - other["accuracy"] for other in beside}
        found = {name: difference["accuracy"] for name, difference in row["to_baselines"].items()}
        assert found == pytest.approx(expected if row["method"] == "skipkv" else {})
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 6 * 9
    assert set(answers[0]) >= {"prompt", "text", "answer", "correct", "new_tokens"}
    assert full["accuracy"] == sum(answer["correct"] for answer in answers[:6]) / 6
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG") and (out / "length.png").exists()
    assert "skipkv steered at 100 slots: " in capsys.readouterr().out


def test_several_tasks_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = tmp_path / "run", tmp_path / "other.jsonl"
    other.write_text("".join((DATA / "ledger" / "validation.jsonl").read_text().splitlines(keepends=True)[:9]))
    command = ["compare", "--baselines", "rkv", "--budgets", "0.5", "--limit", "4", "--shuffle", "--out", str(out)]
    assert run([*command, "--task", "ledger", str(other), "--seed", "0", "1"]) == 0
    told = capsys.readouterr().out
    assert "ledger, mean and deviation over 2 seeds" in told and "other, mean and deviation" in told
    written = {path.name: (path / "answers.jsonl").read_bytes() for path in out.iterdir()}
    assert sorted(written) == ["ledger-seed-0", "ledger-seed-1", "other-seed-0", "other-seed-1"]
    assert len(set(written.values())) == 4
    assert json.loads((out / "other-seed-1" / "results.json").read_text())["task"] == str(other)
    # A seed more: what is there is not done again.
    assert run([*command, "--task", "ledger", str(other), "--seed", "0", "1", "2", "0"]) == 0
    assert {name: (out / name / "answers.jsonl").read_bytes() for name in written} == written


def test_tasks_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [tmp_path / folder / "test.jsonl" for folder in ("a", "b")]
    for task in tasks:
        task.parent.mkdir()
        task.write_text((DATA / "ledger" / "validation.jsonl").read_text())
    assert run(["compare", "--task", *map(str, tasks), "--out", str(tmp_path / "out")]) == 2
    assert "two files have one name" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_one_value_where_one_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch-and-eval", "--task", "ledger", "gsm8k", "--out", str(tmp_path / "out")]) == 2
    assert "gsm8k" in capsys.readouterr().err


def test_extract_then_evaluate(tmp_path: Path) -> None:
    vector, out = tmp_path / "v.safetensors", tmp_path / "run"
    assert run(["extract-vectors", "--limit", "12", "--layer", "2", "--out", str(vector)]) == 0
    assert run(["patch-and-eval", "--budget", "100", "--limit", "3", "--vectors", str(vector), "--out", str(out)]) == 0
    (row,) = json.loads((out / "results.json").read_text())["rows"]
    assert (row["method"], row["budget"], row["steered"], row["n"]) == ("skipkv", 100, True, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--baselines", "h2o", "best"], "'best'"),
        (["compare", "--budgets", "many"], "'many'"),
        (["compare", "--budgets", "8"], "above the window of 8"),
        (["compare", "--task", "chess"], "'chess'"),
        (["compare", "--task", "missing.jsonl"], "no such file"),
        (["compare", "--limit", "0"], "--limit is 0"),
        (["compare", "--model", "/nowhere/model"], "/nowhere/model"),
        (["compare", "--model", "missing.gguf"], "missing.gguf"),
        (["compare", "--schedule", "fast"], "'fast'"),
        (["compare", "--vectors", "missing.safetensors"], "missing.safetensors"),
        (["compare", "--batch-size", "0"], "batch_size is 0"),
        (["compare", "--dtype", "int8"], "int8"),
        (["compare", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["compare", "--prefill-chunk", "0"], "prefill_chunk is 0"),
        (["compare", "--start", "400"], "--start is 400"),
        (["patch-and-eval", "--method", "best"], "'best'"),
        (["patch-and-eval", "--budget", "0.25"], "--full-length"),
        (["patch-and-eval", "--full-results", "missing.json", "--budget", "0.25"], "--full-results"),
        (["extract-vectors", "--layer", "99"], "from 0 to"),
        (["extract-vectors", "--traces", "missing.jsonl"], "missing.jsonl"),
        (["extract-vectors", "--position", "middle"], "'middle'"),
        (["compare", "--bogus", "1"], "--bogus"),
        (["compare", "--limit", "few"], "--limit"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("skipkv: ")
    assert not list(tmp_path.iterdir())


def test_another_models_vector_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "v.safetensors", tmp_path / "out"
    SteeringVector(torch.ones(7), 1, ThinkTokens([1], [], [], [])).save(path)
    assert run(["patch-and-eval", "--vectors", str(path), "--out", str(out)]) == 2
    assert "7 numbers" in capsys.readouterr().err and not out.exists()


def test_sweep_finds_a_setting_and_saves_it(tmp_path: Path) -> None:
    out, best = tmp_path / "sweep", tmp_path / "best.safetensors"
    command = ["sweep-steering", "--alphas", "-0.3", "0", "--limit", "10", "--save", str(best), "--out", str(out)]
    assert run(command) == 0
    points = json.loads((out / "sweep.json").read_text())["points"]
    assert [(point["vector"], point["alpha0"]) for point in points] == [
        ("none", 0.0),
        ("learned", -0.3),
        ("random", -0.3),
        ("learned", 0.0),
        ("random", 0.0),
    ]
    assert points[1]["mean_new_tokens"] < 0.7 * points[0]["mean_new_tokens"] < points[2]["mean_new_tokens"]
    assert load_vector(best).alpha0 == -0.3 and (out / "sweep.png").exists()
    # Another strength: only that is run.
    before = {path: path.read_bytes() for path in out.glob("*/answers.jsonl")}
    assert len(before) == 5
    command[command.index("0")] = "-0.2"
    assert run(command) == 0
    after = {path: path.read_bytes() for path in out.glob("*/answers.jsonl")}
    assert len(after) == 7 and before.items() <= after.items()


def test_doctor_finds_the_patch_fit_and_says_when_it_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["doctor"]) == 0
    told = capsys.readouterr().out
    assert told.count("the same tokens") == 4 and "transformers" in told and "flash-attn" in told
    # An upgrade that breaks the patch: attention forgets its scaling.
    from skipkv.patches import binding

    attend = binding.attend
    monkeypatch.setattr(binding, "attend", lambda q, k, v, mask, scaling: attend(q, k, v, mask, scaling / 3))
    assert run(["doctor"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_bad_choices_of_steering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["extract-vectors", "--clusters", "1"], "--clusters is '1'"),
        (["extract-vectors", "--clustering", "dbscan"], "kmeans, gmm"),
        (["extract-vectors", "--label-with", "ear"], "classifier or keywords"),
        (["extract-vectors", "--samples", "2"], "--temperature"),
        (["patch-and-eval", "--count-with", "fingers"], "tokens or labeller"),
        (["compare", "--samples", "3"], "--temperature"),
    ):
        assert run([*arguments, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()
