"""Plain `model.generate` inside the patch: what it can do, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from conftest import DELIMITERS, EOS, random_prompts, tiny_model

import skipkv
from skipkv import policies
from skipkv.evaluation import tasks
from skipkv.patches.doctor import examine
from skipkv.steering.controller import ThinkTokens
from skipkv.steering.vectors import SteeringVector

PROMPT = torch.tensor(random_prompts((30,)))
OPTIONS: dict[str, Any] = {"max_new_tokens": 50, "eos_token_id": EOS, "pad_token_id": 0}
POLICY = policies.SkipKV(budget=24)


def written(model: Any, **options: Any) -> torch.Tensor:
    with skipkv.patch(model, POLICY, delimiter_ids=DELIMITERS):
        return model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **{**OPTIONS, **options})


def test_sampled_sequences_and_streams() -> None:
    model = tiny_model("Qwen2")
    torch.manual_seed(3)
    several = written(model, do_sample=True, num_return_sequences=4)
    assert several.shape[0] == 4 and len({tuple(row) for row in several.tolist()}) > 1

    class Heard(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.tokens.append(-1)

    heard = Heard()
    greedy = written(model, do_sample=False, streamer=heard)
    assert heard.tokens == [*greedy[0].tolist(), -1]


def test_stopping_criteria_stop() -> None:
    model = tiny_model("Llama")
    stop = transformers.StoppingCriteriaList([lambda ids, scores, **_: torch.full((1,), ids.shape[1] >= 41)])
    assert written(model, do_sample=False, eos_token_id=None, stopping_criteria=stop).shape[1] == 41


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 2, "do_sample": True},
        {"cache_implementation": "static"},
        {"prompt_lookup_num_tokens": 3},
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(options: dict[str, Any]) -> None:
    model = tiny_model("Qwen3")
    before = model(PROMPT).logits
    with pytest.raises(skipkv.BadInput, match=r"num_beams=1|cache_implementation"):
        written(model, do_sample=options.pop("do_sample", False), **options)
    assert torch.equal(model(PROMPT).logits, before)


def test_an_assistant_is_refused() -> None:
    model = tiny_model("Llama")
    with pytest.raises(skipkv.BadInput, match="no assistant"):
        written(model, assistant_model=tiny_model("Llama", seed=1), do_sample=False)


def test_two_models_with_two_policies() -> None:
    one, other = tiny_model("Llama"), tiny_model("Qwen3")
    expected = written(one, do_sample=False), written(other, do_sample=False)
    with skipkv.patch(one, POLICY, delimiter_ids=DELIMITERS), skipkv.patch(other, policies.H2O(budget=16)):
        ids = one.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), do_sample=False, **OPTIONS)
        assert torch.equal(ids, expected[0])
        ids = other.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), do_sample=False, **OPTIONS)
        assert not torch.equal(ids, expected[1])


def test_a_pipeline_runs(reasoner: tuple[Any, Any]) -> None:
    model, tokenizer = reasoner
    prompt = tasks.prompt_for(tasks.load("ledger")[0], tokenizer)
    results = skipkv.generate(model, [prompt], policy=policies.SkipKV(budget=96), tokenizer=tokenizer)
    (expected,) = (result.text for result in results)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    with skipkv.patch(model, policies.SkipKV(budget=96), tokenizer=tokenizer):
        (answer,) = pipeline(
            prompt, return_full_text=False, do_sample=False, max_new_tokens=1024, add_special_tokens=False
        )
    assert answer["generated_text"] == expected


@pytest.mark.parametrize("name", ["skipkv", "h2o"])
def test_a_compiled_step_writes_the_same_tokens(name: str) -> None:
    model = tiny_model("Qwen2")
    options: dict[str, Any] = {
        "policy": policies.build(name, budget=24),
        "steering": SteeringVector(torch.full((32,), 0.5), 1, ThinkTokens(DELIMITERS, [21, 22], [], [])),
        "delimiter_ids": DELIMITERS,
        "eos_token_id": EOS,
        "max_new_tokens": 60,
        "batch_size": 3,
    }
    prompts = random_prompts((9, 30, 17, 50))
    eager = {result.index: result.tokens for result in skipkv.generate(model, prompts, **options)}
    torch._dynamo.utils.counters.clear()
    assert {r.index: r.tokens for r in skipkv.generate(model, prompts, compile=True, **options)} == eager
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert "forward" not in vars(model.model)


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_the_doctor_is_not_misled_by_an_end_or_by_the_models_own_settings(
    reasoner: tuple[Any, Any], penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that end early, and models (Qwen2.5's) whose generation settings penalise repetition."""
    model, tokenizer = reasoner
    monkeypatch.setattr(model.generation_config, "repetition_penalty", penalty)
    short = "<|user|>- Ann: 7.\n- Ben: Ann plus 2.\nHow many keys does Ben have?<|assistant|><think>\n"
    found = list(examine(model, tokenizer, [short, "<|user|>- Ann: 7.\nWhat?<|assistant|></think>\n\n\\boxed{7}"]))
    assert len(found) == 6 and all(finding.ok for finding in found), found
