"""The ways to attend agree: fused, by hand, and packed for flash-attn; in every dtype."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import DELIMITERS, EOS, random_prompts, tiny_model

import skipkv
from skipkv import policies
from skipkv.attention import packing

PROMPTS = random_prompts((5, 40, 17, 60, 9))


def plain_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_starts: torch.Tensor,
    k_starts: torch.Tensor,
    longest_q: int,
    longest_k: int,
    softmax_scale: float,
    causal: bool,
) -> torch.Tensor:
    """flash_attn_varlen_func by its documentation: row by row, causal from the bottom right."""
    assert causal and longest_q == q_starts.diff().max() and longest_k == k_starts.diff().max()
    out = torch.empty_like(q)
    for row in range(len(q_starts) - 1):
        queries, own = slice(*q_starts[row : row + 2]), slice(*k_starts[row : row + 2])
        group = q.shape[1] // k.shape[1]
        keys, values = (table[own].repeat_interleave(group, dim=1).float() for table in (k, v))
        logits = torch.einsum("qhd,khd->hqk", q[queries].float(), keys) * softmax_scale
        count, held = logits.shape[1:]
        allowed = torch.ones(count, held).tril(held - count).bool()
        weights = logits.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        out[queries] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def answers(model: Any, policy: policies.Policy, **options: Any) -> dict[int, list[int]]:
    results = skipkv.generate(
        model, PROMPTS, policy=policy, delimiter_ids=DELIMITERS, eos_token_id=EOS, max_new_tokens=50, **options
    )
    return {result.index: result.tokens for result in results}


def test_packing_finds_the_real_entries() -> None:
    real = torch.tensor([[False, True, True], [True, True, True], [False, False, True]])
    packed = packing(real, torch.device("cpu"))
    assert packed.index.tolist() == [1, 2, 3, 4, 5, 8]
    assert packed.starts.tolist() == [0, 2, 5, 6] and packed.starts.dtype == torch.int32 and packed.longest == 3


@pytest.mark.parametrize("chunk", [None, 7])
def test_the_flash_road_writes_the_same_tokens(monkeypatch: pytest.MonkeyPatch, chunk: int | None) -> None:
    """The kernel itself needs a GPU; here a plain function of the same signature stands in for it."""
    from skipkv.patches import binding

    model, policy = tiny_model("Qwen2"), policies.SkipKV(budget=24)
    expected = answers(model, policy, batch_size=3, prefill_chunk=chunk)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=plain_varlen))
    used = []
    apply = binding.Binding.apply

    def applied(self: Any) -> None:
        apply(self)
        self.backend = binding.FLASH
        used.append(self)

    monkeypatch.setattr(binding.Binding, "apply", applied)
    assert answers(model, policy, batch_size=3, prefill_chunk=chunk) == expected and used


def test_flash_refuses_float32() -> None:
    model = tiny_model("Llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(skipkv.BadInput, match="float16 and bfloat16"), skipkv.patch(model, policies.H2O(budget=24)):
        pass


@pytest.mark.parametrize("name", list(policies.POLICIES))
def test_eager_and_sdpa_agree(name: str) -> None:
    model, policy = tiny_model("Qwen3"), policies.build(name, budget=24)
    fused = answers(model, policy, batch_size=3)
    model.set_attn_implementation("eager")
    assert answers(model, policy, batch_size=3) == fused


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(policies.POLICIES))
def test_half_precision_stays_close(name: str, dtype: torch.dtype) -> None:
    """Teacher-forced over three compressions: the logits of a half-precision model stay near those in float32."""
    model, policy = tiny_model("Llama").float(), policies.build(name, budget=24)
    ids = torch.tensor(random_prompts((90,)))
    logits = {}
    for kind in (torch.float32, dtype):
        model.to(kind)
        with skipkv.patch(model, policy, delimiter_ids=DELIMITERS) as binding, torch.no_grad():
            cache = binding.new_cache(1)
            binding.logits(ids[:, :20], None, cache)
            steps = [binding.logits(ids[:, i : i + 1], None, cache) for i in range(20, 90)]
        logits[kind] = torch.cat(steps, dim=1).float()
        assert binding.cache.slabs[0].keys.dtype == kind
    # Where a near tie falls the other way another slot is kept, so a few steps may differ; most agree closely.
    difference = (logits[dtype] - logits[torch.float32]).abs().amax(dim=-1)
    assert torch.isfinite(logits[dtype]).all() and difference.median() < 0.05 * logits[torch.float32].abs().max()
