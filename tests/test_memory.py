"""Memory: allocated once, as the formula says, and the process grows by just that."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import DELIMITERS, random_prompts, tiny_model

import skipkv
from skipkv import policies
from skipkv.patches.binding import Binding
from skipkv.patches.engine import TransformersEngine


def resident_bytes() -> int:
    """Of this process, from the kernel, once the allocator has given back what it only holds in stock."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def formula(model: Any, rows: int, slots: int) -> int:
    """Bytes of keys and values: two tables of float32 for every layer, row, head and slot."""
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    return 2 * 4 * config.num_hidden_layers * rows * config.num_key_value_heads * slots * head_dim


@pytest.mark.parametrize("name", [name for name in policies.POLICIES if name != "full"])
def test_bytes_follow_the_formula_and_do_not_grow(name: str) -> None:
    model = tiny_model("Llama")
    peaks = []
    for new_tokens in (10, 200):
        results = skipkv.generate(
            model,
            random_prompts((40, 9, 33)),
            policy=policies.build(name, budget=24),
            delimiter_ids=DELIMITERS,
            eos_token_id=[],
            batch_size=3,
            interval=16,
            max_new_tokens=new_tokens,
        )
        peaks.append(max(result.peak_kv_bytes for result in results))
    assert peaks == [formula(model, 3, 24 + 16)] * 2


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_the_process_grows_by_what_the_report_says() -> None:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).eval()
    binding = Binding(model, policies.RKV(budget=480), interval=32, steering=None, delimiters=[])
    binding.apply()
    before = resident_bytes()
    engine = TransformersEngine(binding, 32, chunk=64)
    tokens = engine.prefill(range(32), random_prompts((600,) * 32)).argmax(dim=-1)
    for _ in range(40):
        tokens = engine.step(tokens).argmax(dim=-1)
    grown, report = resident_bytes() - before, engine.cache.report()
    binding.undo()
    assert report["kv_bytes"] == formula(model, 32, 512) > 100 * 2**20
    assert grown == pytest.approx(report["kv_bytes"] + report["side_bytes"], rel=0.25)


def test_a_long_prompt_in_chunks_needs_budget_and_chunk_only() -> None:
    model, widest = tiny_model("Llama"), 0
    update = skipkv.cache.SlotLayer.update

    def measured(self: Any, keys: torch.Tensor, *rest: Any) -> Any:
        nonlocal widest
        out = update(self, keys, *rest)
        widest = max(widest, out[0].shape[2])
        return out

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(skipkv.cache.SlotLayer, "update", measured)
        results = skipkv.generate(
            model,
            random_prompts((300, 20)),
            policy=policies.SkipKV(budget=24),
            delimiter_ids=DELIMITERS,
            max_new_tokens=2,
            prefill_chunk=32,
        )
        assert len(list(results)) == 2
    assert widest <= 24 + 32
