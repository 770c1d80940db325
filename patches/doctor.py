"""Does the patch still fit this model and these versions? What `skipkv doctor` looks at."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

import skipkv
from skipkv.patches.engine import generate, patch
from skipkv.policies import FullKV, Policy, SkipKV

PACKAGES = ("torch", "transformers", "safetensors", "accelerate", "flash-attn")
TOKENS = 48
TEXTS = (
    "How many primes are there below 30?",
    "Ann has 12 apples and gives a third of them to Ben.\nShe buys five more.\n\nHow many apples does Ann have now?",
    "Solve x + 2 = 7.",
)


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `ok` is None where there is nothing to pass."""

    what: str
    told: str
    ok: bool | None = None


def surroundings(model: Any) -> Iterator[Finding]:
    """Versions, device and attention backend, and what is missing."""
    yield Finding("skipkv", skipkv.__version__)
    yield Finding("python", platform.python_version())
    for package in PACKAGES:
        try:
            yield Finding(package, version(package))
        except PackageNotFoundError:
            yield Finding(package, "not installed")
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    yield Finding("device", f"{device} ({name}), {model.dtype}".replace("torch.", ""))
    yield Finding("model", f"{type(model).__name__}, attention {model.config._attn_implementation}")


def examine(model: Any, tokenizer: Any, texts: Sequence[str] = TEXTS) -> Iterator[Finding]:
    """Compares patched runs with the plain model, on texts of different length.

    Raises:
        BadInput: the model is of no supported family.
    """
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    plain = [plain_tokens(model, prompt) for prompt in prompts]
    before = model(torch.tensor([prompts[0]], device=model.device)).logits
    for title, policy in (
        ("full cache, patched", FullKV()),
        ("a budget never reached", SkipKV(budget=max(map(len, prompts)) + TOKENS + 8)),
    ):
        yield agreement(f"{title}: one by one", model, tokenizer, prompts, plain, policy, 1)
        yield agreement(f"{title}: in a batch", model, tokenizer, prompts, plain, policy, len(prompts))
    yield small_budget(model, tokenizer, prompts)
    after = model(torch.tensor([prompts[0]], device=model.device)).logits
    same = torch.equal(before, after)
    yield Finding("after the patch", "logits are bitwise the same" if same else "logits changed", same)


@torch.no_grad()
def plain_tokens(model: Any, prompt: list[int]) -> list[int]:
    """What the plain model writes, greedily, up to an end token; a penalty in its own settings is left out."""
    ids = torch.tensor([prompt], device=model.device)
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, repetition_penalty=1.0, max_new_tokens=TOKENS
    )
    return written[0, len(prompt) :].tolist()


def agreement(
    title: str,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    plain: Sequence[list[int]],
    policy: Policy,
    batch_size: int,
) -> Finding:
    """Whether the patched model writes the plain model's tokens; a different one must be a tie in the plain model."""
    found = generate(model, prompts, policy=policy, tokenizer=tokenizer, max_new_tokens=TOKENS, batch_size=batch_size)
    ties = 0
    for result in found:
        expected = plain[result.index]
        step = next((i for i, (a, b) in enumerate(zip(result.tokens, expected, strict=False)) if a != b), None)
        if step is None:
            continue
        prefix = prompts[result.index] + expected[:step]
        if not tied(model, prefix, result.tokens[step], expected[step]):
            texts = [repr(tokenizer.decode([token])) for token in (result.tokens[step], expected[step])]
            return Finding(
                title, f"prompt {result.index} differs at new token {step}: {texts[0]} for {texts[1]}", False
            )
        ties += 1
    return Finding(title, "the same tokens" + (f", {ties} near ties aside" if ties else ""), True)


@torch.no_grad()
def tied(model: Any, prefix: list[int], one: int, other: int) -> bool:
    """Whether two next tokens lie within rounding of each other in the model's dtype."""
    logits: Tensor = model(torch.tensor([prefix], device=model.device)).logits[0, -1].float()
    rounding = 16 * torch.finfo(model.dtype).eps * logits.abs().max()
    return bool((logits[one] - logits[other]).abs() <= rounding)


def small_budget(model: Any, tokenizer: Any, prompts: Sequence[list[int]]) -> Finding:
    """A run with evictions: the cache must hold what the formula says, and the logits must be numbers."""
    policy, interval, rows = SkipKV(budget=24), 8, len(prompts)
    ids = torch.tensor([prompt[:4] for prompt in prompts], device=model.device)
    with patch(model, policy, tokenizer=tokenizer, interval=interval) as binding, torch.no_grad():
        cache = binding.new_cache(rows)
        for piece in (ids, *[ids[:, :1]] * TOKENS):
            logits = binding.logits(piece, None, cache)
        shape, report = binding.parts.shape, binding.cache.report()
    expected = 2 * shape.dtype.itemsize * len(shape.devices) * rows * shape.kv_heads * (24 + interval) * shape.head_dim
    right = report["kv_bytes"] == expected and report["compressions"] > 0 and bool(torch.isfinite(logits).all())
    return Finding("a budget of 24", f"{report['compressions']} evictions, {report['kv_bytes']} bytes held", right)
