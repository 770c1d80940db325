"""A row does not know its neighbours; without need nothing changes; nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import DELIMITERS, EOS, FAMILIES, random_prompts, tiny_model

import skipkv
from skipkv import policies

PROMPTS = random_prompts((5, 40, 17, 60, 9, 33, 28))


def answers(model: Any, policy: policies.Policy, prompts: list[list[int]], **options: Any) -> dict[int, list[int]]:
    results = skipkv.generate(
        model, prompts, policy=policy, max_new_tokens=60, delimiter_ids=DELIMITERS, eos_token_id=EOS, **options
    )
    return {result.index: result.tokens for result in results}


def plain(model: Any, prompt: list[int]) -> list[int]:
    written = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)).long(),
        do_sample=False,
        max_new_tokens=60,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return written[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", list(policies.POLICIES))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_know_its_neighbours(family: str, name: str) -> None:
    model, policy = tiny_model(family), policies.build(name, budget=24)
    alone = answers(model, policy, PROMPTS, batch_size=1)
    for batch_size, schedule in ((3, "static"), (7, "continuous"), (3, "grouped"), (4, "continuous")):
        assert answers(model, policy, PROMPTS, batch_size=batch_size, schedule=schedule) == alone
    order = [3, 0, 6, 2, 5, 1, 4]
    shuffled = answers(model, policy, [PROMPTS[i] for i in order], batch_size=4)
    assert {order[i]: tokens for i, tokens in shuffled.items()} == alone


@pytest.mark.parametrize("name", list(policies.POLICIES))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_never_reached_changes_nothing(family: str, name: str) -> None:
    model = tiny_model(family)
    expected = {index: plain(model, prompt) for index, prompt in enumerate(PROMPTS)}
    assert answers(model, policies.build(name, budget=400), PROMPTS, batch_size=4) == expected


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(policies.POLICIES))
def test_generate_within_the_patch_writes_what_our_loop_writes(name: str, side: str) -> None:
    model, policy = tiny_model("Qwen2"), policies.build(name, budget=24)
    alone = answers(model, policy, PROMPTS, batch_size=1)
    width = max(map(len, PROMPTS))
    pads = [width - len(prompt) for prompt in PROMPTS]
    left = side == "left"
    ids = torch.tensor([[0] * p + q if left else q + [0] * p for p, q in zip(pads, PROMPTS, strict=True)])
    mask = torch.tensor(
        [[0] * p + [1] * len(q) if left else [1] * len(q) + [0] * p for p, q in zip(pads, PROMPTS, strict=True)]
    )
    with skipkv.patch(model, policy, delimiter_ids=DELIMITERS):
        if left:
            written = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=60, eos_token_id=EOS, pad_token_id=0
            )[:, width:]
            for index, row in enumerate(written.tolist()):
                assert row[: len(alone[index])] == alone[index]
        else:  # generate wants left padding; the forward pass takes both
            logits = model(input_ids=ids, attention_mask=mask).logits
            first = logits[range(len(PROMPTS)), [len(prompt) - 1 for prompt in PROMPTS]].argmax(dim=-1)
            assert first.tolist() == [alone[index][0] for index in range(len(PROMPTS))]


def test_kept_positions_do_not_depend_on_the_batch() -> None:
    model, policy = tiny_model("Llama"), policies.build("skipkv", budget=24)

    def kept(prompts: list[list[int]]) -> list[list[torch.Tensor]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with skipkv.patch(model, policy, delimiter_ids=DELIMITERS) as binding:
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=40,
                min_new_tokens=40,
                eos_token_id=EOS,
                pad_token_id=0,
            )
        assert binding.cache.compressions > 0
        return binding.cache.report()["positions"]

    together = kept(PROMPTS)
    for index, prompt in enumerate(PROMPTS):
        for layer, one in enumerate(kept([prompt])):
            assert torch.equal(one[0], together[layer][index])


def test_after_the_patch_the_model_is_what_it_was() -> None:
    model = tiny_model("Qwen3")
    ids = torch.tensor([PROMPTS[1]])
    before, setting, attributes = (
        model(ids).logits,
        model.config._attn_implementation,
        set(vars(model.model.layers[0].self_attn)),
    )
    with pytest.raises(RuntimeError, match="in the middle"), skipkv.patch(model, policies.RKV(budget=24)):
        model(ids)
        raise RuntimeError("in the middle")
    assert torch.equal(model(ids).logits, before)
    assert model.config._attn_implementation == setting
    assert set(vars(model.model.layers[0].self_attn)) == attributes
    assert not model.model._forward_hooks and not model.model._forward_pre_hooks and not model.model.norm._forward_hooks


def test_patching_twice_is_refused() -> None:
    model = tiny_model("Llama")
    with skipkv.patch(model, policies.RKV(budget=24)):
        with pytest.raises(skipkv.BadInput, match="patched already"), skipkv.patch(model, policies.RKV(budget=24)):
            pass
        model(torch.tensor([PROMPTS[0]]))


def test_sampling_does_not_depend_on_the_batch() -> None:
    model, policy = tiny_model("Llama"), policies.build("rkv", budget=24)
    drawn = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 11}
    alone = answers(model, policy, PROMPTS, batch_size=1, **drawn)
    assert answers(model, policy, PROMPTS, batch_size=5, **drawn) == alone
    assert answers(model, policy, PROMPTS, batch_size=5, **{**drawn, "seed": 12}) != alone


def test_memory_is_what_the_budget_says() -> None:
    model = tiny_model("Llama")
    with skipkv.patch(model, policies.RKV(budget=24), interval=16) as binding:
        for length in (50, 90):
            model.generate(
                input_ids=torch.tensor([PROMPTS[0]] * 2),
                attention_mask=torch.ones(2, 5).long(),
                pad_token_id=0,
                do_sample=False,
                max_new_tokens=length,
                min_new_tokens=length,
                eos_token_id=EOS,
            )
            # layers x rows x kv_heads x (budget + interval) x head_dim, keys and values, 4 bytes each
            assert binding.cache.report()["peak_kv_bytes"] == 3 * 2 * 2 * (24 + 16) * 8 * 2 * 4


def test_what_cannot_work_is_said() -> None:
    model = tiny_model("Llama")
    with pytest.raises(skipkv.BadInput, match="delimiter_ids"), skipkv.patch(model, policies.SkipKV(budget=24)):
        pass
    with pytest.raises(skipkv.BadInput, match="prompt 1 is empty"):
        list(skipkv.generate(model, [[5], []], policy=policies.FullKV()))
    with pytest.raises(skipkv.BadInput, match="tokenizer"):
        skipkv.generate(model, ["text"], policy=policies.FullKV())
    with pytest.raises(skipkv.BadInput, match="unknown schedule 'fast'"):
        list(skipkv.generate(model, [[5]], policy=policies.FullKV(), schedule="fast"))
    with pytest.raises(skipkv.BadInput, match="not supported"):
        skipkv.generate(torch.nn.Linear(2, 2), [[5]], policy=policies.FullKV())
