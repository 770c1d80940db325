"""SkipKV inside lm-evaluation-harness, on a task in a local folder. Skips without the harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipkv.evaluation import tasks
from skipkv.evaluation.models import REASONER

lm_eval = pytest.importorskip("lm_eval")

TASK = """
task: ledger_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{path}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "<|user|>{{{{question}}}}<|assistant|><think>\\n"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<|end|>"], max_gen_toks: 600, do_sample: false}}
filter_list:
  - name: boxed
    filter: [{{function: regex, regex_pattern: "boxed\\\\{{(\\\\d+)", group_select: -1}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def test_the_harness_grades_what_skipkv_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import skipkv.evaluation.harness  # noqa: F401  (makes the model known)

    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    rows = [{"question": problem.question, "answer": problem.answer} for problem in tasks.load("ledger", 12)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "ledger_local.yaml").write_text(TASK.format(path=tmp_path / "test.jsonl"))
    arguments = f"pretrained={REASONER},method=skipkv,budget=160,vectors={REASONER / 'steering.safetensors'},device=cpu"
    found = lm_eval.simple_evaluate(
        model="skipkv",
        model_args=arguments,
        tasks=["ledger_local"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path)),
        batch_size=4,
        bootstrap_iters=0,
    )
    assert found["results"]["ledger_local"]["exact_match,boxed"] >= 0.9
