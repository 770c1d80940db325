"""The reasoner that ships: it reasons, it is right, and its answers do not depend on the batch."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import ROOT
from transformers import AutoTokenizer

import skipkv
from skipkv import policies
from skipkv.decoding import Settings
from skipkv.evaluation import tasks
from skipkv.evaluation.models import REASONER, REASONER_VECTOR
from skipkv.evaluation.runner import run, summarise
from skipkv.evaluation.sweep import random_like
from skipkv.steering.functions import NON_EXECUTION
from skipkv.thinking import thinking_of


@pytest.fixture(scope="module")
def ledger() -> ModuleType:
    """The generator script."""
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "data" / "reasoner" / "training" / "ledger.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["ledger"] = module
    spec.loader.exec_module(module)
    return module


def test_splits_share_no_problem(ledger: ModuleType) -> None:
    def drawn(split: str) -> set[str]:
        source = ledger.problems(3, split, range(3, 8))
        return {next(source)[0].question() for _ in range(200)}

    assert not drawn("train") & drawn("test") and not drawn("validation") & drawn("test")
    shipped = {problem.question for problem in tasks.load("ledger")}
    assert len(shipped) == 400 and not shipped & {problem.question for problem in tasks.load("ledger-validation")}


def test_generated_answers_are_right_and_say_so(ledger: ModuleType) -> None:
    source = ledger.problems(4, "train", range(3, 8))
    shares, lengths = [], []
    tokenizer = AutoTokenizer.from_pretrained(REASONER)
    for _ in range(300):
        problem, rng = next(source)
        text = ledger.response(rng, problem)
        assert skipkv.grade(text, str(problem.answer()))
        assert tokenizer.decode(tokenizer.encode(problem.question() + text)) == problem.question() + text
        functions = [sentence.function for sentence in skipkv.label_sentences(thinking_of(text))]
        shares.append(sum(function in NON_EXECUTION for function in functions) / len(functions))
        lengths.append(len(tokenizer.encode(thinking_of(text))))
    assert 0.3 < sum(shares) / 300 < 0.6
    assert 150 < sum(lengths) / 300 < 600


def test_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in REASONER.glob("*.safetensors")) < 12 * 2**20
    assert REASONER_VECTOR.exists()


def test_the_full_cache_reasons_and_steering_shortens_it(reasoner: tuple[Any, Any]) -> None:
    problems = tasks.load("ledger", 100)
    settings = Settings(batch_size=25)
    vector = skipkv.load_vector(REASONER_VECTOR)
    plain = summarise(run(*reasoner, problems, policies.FullKV(), settings))
    steered = summarise(run(*reasoner, problems, policies.FullKV(), settings, steering=vector))
    random = summarise(run(*reasoner, problems, policies.FullKV(), settings, steering=random_like(vector, 0)))
    assert plain.accuracy >= 0.95
    assert plain.nonexec_per_answer > 3
    assert steered.mean_new_tokens < 0.72 * plain.mean_new_tokens < random.mean_new_tokens
    assert steered.nonexec_per_answer < 0.2 * plain.nonexec_per_answer
    assert steered.accuracy >= plain.accuracy - 0.01


@pytest.mark.parametrize("name", list(policies.POLICIES))
def test_batch_of_one_and_of_ten_shuffled_agree(reasoner: tuple[Any, Any], name: str) -> None:
    model, tokenizer = reasoner
    policy = policies.build(name, budget=90)
    problems = tasks.load("ledger", 10)
    prompts = [tasks.prompt_for(problem, tokenizer) for problem in problems]
    options: dict[str, Any] = {"policy": policy, "tokenizer": tokenizer, "max_new_tokens": 500}
    if name == "skipkv":
        options["steering"] = skipkv.load_vector(REASONER_VECTOR)
    alone = {result.index: result.tokens for result in skipkv.generate(model, prompts, batch_size=1, **options)}
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()
    results = skipkv.generate(model, [prompts[i] for i in order], batch_size=10, **options)
    assert {order[result.index]: result.tokens for result in results} == alone


def test_plain_generate_agrees_with_a_budget_never_reached(reasoner: tuple[Any, Any]) -> None:
    model, tokenizer = reasoner
    prompt = tokenizer(
        tasks.prompt_for(tasks.load("ledger")[3], tokenizer), return_tensors="pt", add_special_tokens=False
    )
    inputs = {"input_ids": prompt["input_ids"], "attention_mask": prompt["attention_mask"]}
    plain = model.generate(**inputs)
    before = model(**inputs).logits
    with skipkv.patch(model, skipkv.SkipKV(budget=1500)):
        assert torch.equal(model.generate(**inputs), plain)
    assert torch.equal(model(**inputs).logits, before)
