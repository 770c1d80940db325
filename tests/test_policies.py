"""Policies keep what their papers, and their authors' code, keep."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import SHARED
from safetensors import safe_open

import skipkv
from skipkv import policies

GOLDENS = SHARED / "goldens" / "policy_selection.safetensors"


@pytest.mark.skipif(not GOLDENS.exists(), reason="published selections are not here")
@pytest.mark.parametrize("name", ["rkv", "snapkv", "streamingllm"])
@pytest.mark.parametrize("case", [f"case{i}" for i in range(6)])
def test_keeps_what_the_authors_code_keeps(name: str, case: str) -> None:
    with safe_open(GOLDENS, "pt") as file:
        told = json.loads(file.metadata()[case])
        policy = policies.build(
            name,
            budget=told["budget"],
            window=told["window"],
            kernel_size=told["kernel_size"],
            lam=told["mix_lambda"],
            sinks=told["first_tokens"],
        )
        kept = policy.keep(file.get_tensor(f"{case}.keys"), file.get_tensor(f"{case}.queries"))
        assert torch.equal(kept, file.get_tensor(f"{case}.{name}"))


def inputs(batch: int = 3, slots: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    return (
        torch.randn(batch, 2, slots, 16, generator=source),
        torch.randn(batch, 4, 8, 16, generator=source),
        torch.rand(batch, 2, slots, generator=source),
        (torch.rand(batch, 2, slots, generator=source) > 0.7).float(),
    )


def test_h2o_keeps_heavy_hitters_and_the_recent_half() -> None:
    keys, queries, attention, _ = inputs()
    kept = skipkv.H2O(budget=20).keep(keys, queries, attention=attention)
    for row in range(3):
        for head in range(2):
            heavy = attention[row, head, :40].argsort(descending=True)[:10].tolist()
            assert kept[row, head].tolist() == sorted(heavy) + list(range(40, 50))


def test_h2o_says_that_it_needs_attention() -> None:
    keys, queries, _, _ = inputs()
    with pytest.raises(skipkv.BadInput, match="attention"):
        skipkv.H2O(budget=20).keep(keys, queries)


def test_skipkv_without_redundant_sentences_is_rkv() -> None:
    keys, queries, _, _ = inputs()
    ours = skipkv.SkipKV(budget=20).keep(keys, queries, penalty=torch.zeros(3, 2, 50))
    assert torch.equal(ours, skipkv.RKV(budget=20).keep(keys, queries))


def test_redundant_sentences_leave_first_and_whole() -> None:
    keys, queries, _, _ = inputs()
    penalty = torch.zeros(3, 2, 50)
    penalty[:, :, 5:15] = 0.97
    kept = skipkv.SkipKV(budget=38).keep(keys, queries, penalty=penalty)
    assert not ((kept >= 5) & (kept < 15)).any()


@pytest.mark.parametrize("name", ["streamingllm", "h2o", "snapkv", "rkv", "skipkv"])
def test_a_row_is_judged_as_it_would_be_alone(name: str) -> None:
    keys, queries, attention, penalty = inputs()
    policy = policies.build(name, budget=20)
    lengths = torch.tensor([50, 33, 20])
    together = policy.keep(keys, queries, lengths=lengths, penalty=penalty, attention=attention)
    assert together.shape == (3, 2, 20) and together.dtype == torch.int64
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = policy.keep(
            keys[one, :, :length], queries[one], penalty=penalty[one, :, :length], attention=attention[one, :, :length]
        )
        assert torch.equal(together[one], alone)
        assert (together[row] < length).all()
        assert (together[row].diff() > 0).all()


def test_full_keeps_everything() -> None:
    keys, queries, _, _ = inputs()
    assert skipkv.FullKV().keep(keys, queries).tolist() == [[list(range(50))] * 2] * 3


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("best", {}, "unknown method 'best'"),
        ("rkv", {"budget": 8}, "above the window"),
        ("rkv", {}, "needs a budget"),
        ("rkv", {"budget": 20, "lam": 2.0}, "lam is 2.0"),
        ("skipkv", {"budget": 20, "tau": 0.0}, "tau is 0.0"),
        ("snapkv", {"budget": 20, "kernel_size": 4}, "odd"),
        ("streamingllm", {"budget": 20, "sinks": 20}, "sinks is 20"),
        ("rkv", {"budget": 20, "temperature": 1}, "'temperature'"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, float], said: str) -> None:
    with pytest.raises(skipkv.BadInput, match=said):
        policies.build(name, **options)


def test_too_few_slots_are_refused() -> None:
    keys, queries, _, _ = inputs()
    with pytest.raises(skipkv.BadInput, match="only 50"):
        skipkv.RKV(budget=60).keep(keys, queries)
    with pytest.raises(skipkv.BadInput, match="reads 4 queries"):
        skipkv.RKV(budget=20, window=4).keep(keys, queries)
