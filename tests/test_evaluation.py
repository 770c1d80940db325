"""Grading, budgets, intervals and tasks."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import ROOT, SHARED

import skipkv
from skipkv.evaluation import budgets, tasks
from skipkv.evaluation.grading import Grader
from skipkv.evaluation.metrics import bootstrap, mcnemar, pass_at_k, wilson


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("\\boxed{42}", "42", True),
        ("<think>\n\\boxed{41}\n</think>\n\n\\boxed{42}", "42", True),
        ("<think>\nso 42, \\boxed{42}\n</think>\n\n\\boxed{41}", "42", False),
        ("<think>\nso 42, \\boxed{42}\n</think>\n\nI do not know.", "42", False),
        ("first \\boxed{1}, then \\boxed{2}", "2", True),
        ("\\boxed{\\frac{1}{2}}", "0.5", True),
        ("\\boxed{\\frac{1}{2}}", "\\frac{2}{4}", True),
        ("\\boxed{1/3}", "\\frac{1}{2}", False),
        ("\\boxed{(1,2)}", "(1, 2)", True),
        ("\\boxed{(2,1)}", "(1, 2)", False),
        ("\\boxed{x^2+2x+1}", "(x+1)^2", True),
        ("", "3", False),
    ],
)
def test_grades(text: str, gold: str, right: bool) -> None:
    assert skipkv.grade(text, gold) is right


def test_budgets_are_slots_or_fractions() -> None:
    assert budgets.parse("512") == 512 and budgets.parse("0.25") == 0.25
    assert budgets.in_slots(0.25, 400.0) == 100 and budgets.in_slots(77, None) == 77
    for bad in ("0", "-3", "1.5", "many"):
        with pytest.raises(skipkv.BadInput, match="whole number of slots"):
            budgets.parse(bad)
    with pytest.raises(skipkv.BadInput, match="--full-length"):
        budgets.in_slots(0.25, None)


def test_wilson_interval() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20)[0] == 0.0 and wilson(20, 20)[1] == 1.0


def test_jsonl_rows_are_read_and_bad_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text(
        json.dumps({"problem": "1+1?", "answer": "thus\n#### 2"}) + "\n\n" + json.dumps({"question": "?", "answer": 3})
    )
    assert [problem.answer for problem in tasks.load(str(path))] == ["2", "3"]
    path.write_text('{"question": "?"}\n')
    with pytest.raises(skipkv.BadInput, match="line 1"):
        tasks.load(str(path))
    path.write_text("\n")
    with pytest.raises(skipkv.BadInput, match="holds nothing"):
        tasks.load(str(path))


@pytest.mark.skipif(not SHARED.exists(), reason="the public sets are not here")
def test_public_sets_load() -> None:
    assert len(tasks.load(str(SHARED / "data" / "gsm8k_test.jsonl"))) == 1319
    assert len(tasks.load(str(SHARED / "data" / "math500.jsonl"))) == 500
    assert len(tasks.load(str(SHARED / "data" / "aime24.jsonl"))) == 30


def test_pass_at_k_is_the_chance_of_a_right_one_among_k() -> None:
    # 10 samples, 3 right: 1 - C(7, k) / C(10, k).
    assert pass_at_k([3], 10, 1) == pytest.approx(0.3)
    assert pass_at_k([3], 10, 2) == pytest.approx(1 - 21 / 45)
    assert pass_at_k([3], 10, 8) == 1.0
    assert pass_at_k([10, 0], 10, 4) == 0.5
    with pytest.raises(ValueError, match="at least 4 samples"):
        pass_at_k([1], 3, 4)


def test_mcnemar_and_bootstrap() -> None:
    # 1 against 9 discordant pairs: twice the binomial tail, (1 + 10) / 2^9.
    ours, theirs = [True] * 1 + [False] * 9 + [True] * 30, [False] * 1 + [True] * 9 + [True] * 30
    assert mcnemar(ours, theirs) == pytest.approx(2 * 11 / 2**10)
    assert mcnemar(ours, ours) == 1.0
    low, high = bootstrap([0.0, 1.0] * 100)
    assert low == pytest.approx(0.43, abs=0.01) and high == pytest.approx(0.57, abs=0.01)


def test_an_answer_that_never_ends_is_wrong_and_the_next_one_is_judged() -> None:
    grader = Grader()
    try:
        started = time.monotonic()
        assert not grader.grade("\\boxed{9^{9^{9^{9^{9}}}}}", "1", seconds=3.0)
        assert time.monotonic() - started < 30
        assert grader.grade("\\boxed{4}", "4")
    finally:
        grader.close()


def test_any_thread_gets_the_same_verdict() -> None:
    pairs = [("\\boxed{\\frac{1}{2}}", "0.5"), ("\\boxed{3}", "4")] * 8
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: skipkv.grade(*pair), pairs)) == [True, False] * 8


def test_tasks_of_files_with_start_limit_and_shuffle(tmp_path: Path) -> None:
    rows = [{"problem": f"{n} + 1?", "answer": n + 1, "subject": "sums"} for n in range(20)]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "task.parquet")
    for name in ("task.jsonl", "task.parquet"):
        path = str(tmp_path / name)
        assert [p.answer for p in tasks.load(path, 3, start=5)] == ["6", "7", "8"]
        drawn = [p.answer for p in tasks.load(path, 20, shuffle=True, seed=1)]
        assert drawn != [p.answer for p in tasks.load(path)] and sorted(drawn, key=int) == [
            str(n + 1) for n in range(20)
        ]
    with pytest.raises(skipkv.BadInput, match="--start is 20"):
        tasks.load(str(tmp_path / "task.jsonl"), start=20)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(skipkv.BadInput, match="does not read as Parquet"):
        tasks.load(str(tmp_path / "broken.parquet"))


def test_hub_sets_that_cannot_be_reached_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route")))
    for name in ("gsm8k", "math500", "aime24"):
        with pytest.raises(skipkv.BadInput, match=r"local \.jsonl or \.parquet"):
            tasks.load(name)
    rows = [{"question": "2 + 2?", "answer": "four\n#### 1,004"}]
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows)
    (problem,) = tasks.load("gsm8k")
    assert problem.answer == "1004" and "\\boxed" in problem.instruction and tasks.max_new_tokens("gsm8k") == 8192


def test_answer_pairs() -> None:
    """Right and wrong answers in many dresses; no verdict may be wrong."""
    judged, wrong = 0, []
    for line in (ROOT / "tests" / "answer_pairs.txt").read_text().splitlines()[1:]:
        gold, right, others = (part.strip() for part in line.split(" | "))
        for forms, verdict in ((right, True), (others, False)):
            for form in forms.split(" ; "):
                judged += 1
                if skipkv.grade(f"<think>\n\\boxed{{7}}\n</think>\n\n\\boxed{{{form.strip()}}}", gold) is not verdict:
                    wrong.append((gold, form, verdict))
    assert not wrong and judged >= 150


@pytest.mark.skipif(not SHARED.exists(), reason="the public sets are not here")
def test_every_gold_answer_is_right() -> None:
    for row in map(json.loads, (SHARED / "data" / "math500.jsonl").read_text().splitlines()):
        assert skipkv.grade(row["solution"], row["answer"]), row["unique_id"]
    for problem in tasks.load(str(SHARED / "data" / "gsm8k_test.jsonl")):
        assert skipkv.grade(f"\\boxed{{{problem.answer}}}", problem.answer)
