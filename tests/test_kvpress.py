"""kvpress's scorers as policies: the scores that kvpress itself gives. Skips without kvpress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import EOS, random_prompts, tiny_model

import skipkv
from skipkv import policies
from skipkv.cli.app import run
from skipkv.policies.base import Cached
from skipkv.policies.kvpress import AttentionStandIn, KVPress, scorer, scores

pytest.importorskip("kvpress")

TOKENS = 120
PRESSES = ("KeyDiffPress", "SnapKVPress,window_size=8", "TOVAPress", "ExpectedAttentionPress", "CapPress", "LagKVPress")


@torch.no_grad()
def told_to_kvpress(model: Any, prompt: list[int]) -> dict[str, Any]:
    """What kvpress's forward hook hands to a scorer of the second layer."""
    noted: dict[str, Any] = {}

    def note(module: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        noted.update(module=module, hidden_states=given["hidden_states"], kwargs=given)

    module = model.model.layers[1].self_attn
    module.rotary_emb = model.model.rotary_emb
    handle = module.register_forward_hook(note, with_kwargs=True)
    layer = model(torch.tensor([prompt])).past_key_values.layers[1]
    handle.remove()
    return noted | {"keys": layer.keys, "values": layer.values, "attentions": None}


@torch.no_grad()
def held_by_us(model: Any, policy: policies.Policy, prompt: list[int]) -> tuple[AttentionStandIn, Cached]:
    """The same layer as our cache holds it."""
    with skipkv.patch(model, policy) as binding:
        cache = binding.new_cache(1)
        binding.logits(torch.tensor([prompt]), None, cache)
    slab, bound = cache.slabs[0], binding.policy
    assert isinstance(bound, KVPress) and bound.attention is not None
    keys, values = (table[1, :, :, : len(prompt)] for table in (slab.keys, slab.values))
    return bound.attention, Cached(keys, slab.queries[1], values, newest=torch.tensor([len(prompt) - 1]))


@pytest.mark.parametrize("press", PRESSES)
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_scores_are_kvpress_own(press: str, family: str) -> None:
    model, (prompt,) = tiny_model(family), random_prompts((TOKENS,))
    attention, cached = held_by_us(model, policies.build(f"kvpress:{press}", budget=TOKENS), prompt)
    found = scores(scorer(press), attention, cached, TOKENS)
    theirs = scorer(press).score(**told_to_kvpress(model, prompt))
    torch.testing.assert_close(found, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("press", PRESSES)
def test_scores_do_not_change_along_a_sequence(press: str) -> None:
    model, (prompt,) = tiny_model("Llama"), random_prompts((TOKENS,))
    attention, cached = held_by_us(model, policies.build(f"kvpress:{press}", budget=TOKENS), prompt)
    later, newest = torch.tensor([[5 * TOKENS]]), torch.tensor([6 * TOKENS - 1])
    moved = replace(
        cached, keys=attention.turn(cached.keys, later), queries=attention.turn(cached.queries, later), newest=newest
    )
    found = [scores(scorer(press), attention, some, TOKENS) for some in (cached, moved)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_a_row_does_not_know_its_neighbours() -> None:
    model, prompts = tiny_model("Llama"), random_prompts((5, 40, 17, 60, 9, 33, 28))
    policy = policies.build("kvpress:ExpectedAttentionPress", budget=24)

    def written(batch_size: int) -> dict[int, list[int]]:
        results = skipkv.generate(
            model, prompts, policy=policy, batch_size=batch_size, max_new_tokens=60, eos_token_id=EOS
        )
        return {result.index: result.tokens for result in results}

    assert written(1) == written(3) == written(7)


@pytest.mark.parametrize(
    ("press", "said"),
    [
        ("Nothing", "no scorer 'Nothing'; it has"),
        ("SnapKVPress,width=8", "SnapKVPress says"),
        ("SnapKVPress", "cannot score 40 slots"),  # its window of 64 does not fit
        ("CompactorPress", "only supports prefill"),
    ],
)
def test_a_scorer_that_cannot_work_is_refused(press: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--baselines", f"kvpress:{press}", "--budgets", "40", "--out", "/nowhere"]) == 2
    assert said in capsys.readouterr().err
