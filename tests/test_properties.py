"""A row does not know its neighbours, whatever the model, policy, budget, batch and schedule (hypothesis)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from conftest import DELIMITERS, EOS, FAMILIES, random_prompts, tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skipkv
from skipkv import policies
from skipkv.patches.binding import Binding
from skipkv.patches.engine import TransformersEngine

model_of = cache(tiny_model)
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

budgets = st.integers(12, 40)
names = st.sampled_from(list(policies.POLICIES))
alike = st.sampled_from([{}, {"centred": True, "tau": 0.3}])  # what calls sentences redundant


@st.composite
def prompts_for(draw: Any, budget: int) -> list[list[int]]:
    """1 to 16 prompts of 1 to 3 budgets."""
    lengths = draw(st.lists(st.integers(1, 3 * budget), min_size=1, max_size=16))
    return random_prompts(tuple(lengths), seed=draw(st.integers(0, 9)))


def answers(model: Any, prompts: list[list[int]], **options: Any) -> dict[int, list[int]]:
    results = skipkv.generate(model, prompts, delimiter_ids=DELIMITERS, eos_token_id=[EOS, 5, 6], **options)
    return {result.index: result.tokens for result in results}


@few
@given(st.data())
def test_tokens_do_not_depend_on_batch_schedule_or_order(data: st.DataObject) -> None:
    budget = data.draw(budgets)
    model, prompts = model_of(data.draw(st.sampled_from(FAMILIES))), data.draw(prompts_for(budget))
    options: dict[str, Any] = {
        "policy": policies.build(data.draw(names), budget=budget, **data.draw(alike)),
        "interval": data.draw(st.integers(1, 20)),
        "max_new_tokens": data.draw(st.integers(1, 40)),
        "prefill_chunk": data.draw(st.sampled_from([None, 1, 8, 30])),
        "temperature": data.draw(st.sampled_from([0.0, 0.0, 0.8])),
        "top_p": 0.9,
        "top_k": 20,
        "seed": 4,
    }
    greedy = options["temperature"] == 0.0
    order = data.draw(st.permutations(range(len(prompts)))) if greedy else list(range(len(prompts)))
    together = answers(
        model,
        [prompts[i] for i in order],
        batch_size=data.draw(st.integers(1, 16)),
        schedule=data.draw(st.sampled_from(["static", "grouped", "continuous"])),
        **options,
    )
    # Request i draws with (seed, i): sampled rows are compared under their own number.
    alone = answers(model, prompts, batch_size=1, **options)
    assert {order[index]: tokens for index, tokens in together.items()} == alone


def kept(model: Any, prompts: list[list[int]], policy: policies.Policy, interval: int, steps: int) -> list[Any]:
    """Original positions in the slots after `steps` greedy steps: per row, one tensor per layer."""
    binding = Binding(model, policy, interval=interval, steering=None, delimiters=DELIMITERS)
    binding.apply()
    try:
        engine = TransformersEngine(binding, len(prompts))
        tokens = engine.prefill(range(len(prompts)), prompts).argmax(dim=-1)
        for _ in range(steps):
            tokens = engine.step(tokens).argmax(dim=-1)
        return list(zip(*engine.cache.report()["positions"], strict=True))
    finally:
        binding.undo()


@few
@given(st.data())
def test_kept_positions_do_not_depend_on_the_batch(data: st.DataObject) -> None:
    budget = data.draw(budgets)
    model, prompts = model_of(data.draw(st.sampled_from(FAMILIES))), data.draw(prompts_for(budget))
    policy = policies.build(data.draw(names), budget=budget, **data.draw(alike))
    interval = data.draw(st.integers(1, 20))
    steps = data.draw(st.integers(1, 40))
    together = kept(model, prompts, policy, interval, steps)
    row = data.draw(st.integers(0, len(prompts) - 1))
    (alone,) = kept(model, [prompts[row]], policy, interval, steps)
    assert all(torch.equal(one, other) for one, other in zip(together[row], alone, strict=True))


@few
@given(st.data())
def test_padding_on_either_side_changes_nothing(data: st.DataObject) -> None:
    """The forward pass with a padding mask, prompt after prompt: last logits are those of the row alone."""
    budget = data.draw(budgets)
    model, prompts = model_of(data.draw(st.sampled_from(FAMILIES))), data.draw(prompts_for(budget))
    policy = policies.build(data.draw(names), budget=budget, **data.draw(alike))
    width = max(map(len, prompts))
    left = [data.draw(st.integers(0, width - len(prompt))) for prompt in prompts]
    pads = [(before, width - len(prompt) - before) for prompt, before in zip(prompts, left, strict=True)]
    ids = torch.tensor([[0] * a + prompt + [0] * b for (a, b), prompt in zip(pads, prompts, strict=True)])
    mask = torch.tensor([[0] * a + [1] * len(p) + [0] * b for (a, b), p in zip(pads, prompts, strict=True)])
    with skipkv.patch(model, policy, delimiter_ids=DELIMITERS), torch.no_grad():
        padded = model(ids, attention_mask=mask).logits
        for row, prompt in enumerate(prompts):
            alone = model(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(padded[row, pads[row][0] + len(prompt) - 1], alone, rtol=1e-4, atol=1e-4)
