"""How far a method strays from the full cache on a given text, token by token; needs no right answer.

A reasoning trace is fed through the patched model as if the model had written it, behind its prompt: compression
happens after the same tokens as in decoding, with whole chunks between. Every prediction is compared with the full
cache's. A trace without a prompt follows the token that opens a text: attention rests on the first token, which no
model writes itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.evaluation.store import RunFolder
from skipkv.files import write_atomically
from skipkv.patches.engine import bind
from skipkv.policies import FullKV, Policy
from skipkv.steering.functions import label_sentences

CURVE_STEP = 128  # tokens that one point of the curve is the mean of
MEASURES = ("added_nll", "kl", "agreement")


@dataclass(frozen=True)
class Text:
    """A trace as tokens, with what each token is.

    Attributes:
        prompt: [p] int64, what it is an answer to.
        tokens: [t] int64.
        functions: [t], function of the sentence that each token lies in; "" between sentences.
        kinds: [t], "number" where the token has a digit, else "word".
    """

    prompt: Tensor
    tokens: Tensor
    functions: np.ndarray
    kinds: np.ndarray


@dataclass
class Fidelity:
    """One method at one budget over all traces.

    Attributes:
        measured: [tokens, 3] float, added NLL (nats), KL(full || method) (nats) and agreement of the likeliest token.
        positions, functions, kinds: [tokens], of the token predicted.
    """

    method: str
    budget: int
    traces: int = 0
    measured: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    functions: list[np.ndarray] = field(default_factory=list)
    kinds: list[np.ndarray] = field(default_factory=list)

    def add(self, measured: np.ndarray, text: Text) -> None:
        """Takes in a trace; its first token is not predicted."""
        self.traces += 1
        self.measured.append(measured)
        self.positions.append(np.arange(1, len(text.tokens)))
        self.functions.append(text.functions[1:])
        self.kinds.append(text.kinds[1:])

    def row(self) -> dict[str, Any]:
        """The means, whole and split."""
        measured, positions = np.concatenate(self.measured), np.concatenate(self.positions)
        splits = {"function": np.concatenate(self.functions), "kind": np.concatenate(self.kinds)}
        return {
            "method": self.method,
            "budget": self.budget,
            "traces": self.traces,
            "tokens": len(measured),
            **means(measured),
            **{
                f"by_{name}": {
                    str(value): {"tokens": int((column == value).sum()), **means(measured[column == value])}
                    for value in np.unique(column)
                    if value
                }
                for name, column in splits.items()
            },
            "curve": [
                {"position": int(start), **means(measured[positions // CURVE_STEP * CURVE_STEP == start])}
                for start in np.unique(positions // CURVE_STEP * CURVE_STEP)
            ],
        }


def means(measured: np.ndarray) -> dict[str, float]:
    """The mean of every measure over [tokens, 3]."""
    return dict(zip(MEASURES, measured.mean(axis=0).tolist(), strict=True))


def read_text(thinking: str, tokenizer: Any, longest: int, prompt: str = "") -> Text:
    """Tokens of a trace, the first `longest` of them, with the function of each one's sentence.

    Raises:
        BadInput: the tokenizer tells no character offsets.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise BadInput("fidelity needs a fast tokenizer, which tells where in the text a token stands")
    encoded = tokenizer(thinking, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"][:longest], encoded["offset_mapping"][:longest]
    sentences = label_sentences(thinking)
    starts = np.array([sentence.start for sentence in sentences])
    middles = [(start + end) / 2 for start, end in offsets]  # the middle of a token tells its sentence
    owners = np.searchsorted(starts, middles, side="right") - 1
    functions = [
        sentences[owner].function if owner >= 0 and middle < sentences[owner].end + 1 else ""
        for owner, middle in zip(owners, middles, strict=True)
    ]
    kinds = ["number" if re.search(r"\d", thinking[start:end]) else "word" for start, end in offsets]
    opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    asked = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else opening
    return Text(torch.tensor(asked, dtype=torch.int64), torch.tensor(ids), np.array(functions), np.array(kinds))


@torch.no_grad()
def log_probabilities(model: Any, tokenizer: Any, text: Text, policy: Policy, interval: int | None) -> Iterator[Tensor]:
    """Next-token log-probabilities [chunk, vocab] float32 under a policy, chunk after chunk of the text."""
    binding = bind(model, policy, steering=None, interval=interval, tokenizer=tokenizer, delimiter_ids=None)
    binding.apply()
    try:
        cache = binding.new_cache(1)
        tokens = text.tokens[None].to(cache.home)
        if len(text.prompt):
            cache.select([0], prompt=True)
            binding.logits(text.prompt[None].to(cache.home), None, cache, last=1)
        first = cache.slots - int(cache.host_lengths) if policy.budget is not None else 512
        step = binding.interval if policy.budget is not None else 512
        start, end = 0, first
        while start < tokens.shape[1]:
            cache.select([0], prompt=False)  # all of it counts as written by the model
            logits = binding.logits(tokens[:, start:end], None, cache)[0]
            yield logits.float().log_softmax(dim=-1)
            start, end = end, end + step
    finally:
        binding.undo()


def compare_chunk(full: Tensor, found: Tensor, targets: Tensor) -> Tensor:
    """The three measures [n, 3] of log-probabilities [n, vocab] at the next tokens [n]."""
    at = targets[:, None]
    added = full.gather(1, at)[:, 0] - found.gather(1, at)[:, 0]
    divergence = (full.exp() * (full - found)).sum(dim=-1)
    return torch.stack([added, divergence, (full.argmax(-1) == found.argmax(-1)).float()], dim=1)


def measure(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Text],
    policies: Sequence[Policy],
    *,
    interval: int | None = None,
    folder: RunFolder | None = None,
    finished: Callable[[], None] = lambda: None,
) -> list[Fidelity]:
    """Every policy on every trace against the full cache.

    Args:
        interval: tokens between two compressions; the policy's default where None.
        folder: keeps what is measured of each trace under each policy; what it holds already is not measured again.
        finished: called after each trace under each policy.
    """
    found = [Fidelity(policy.name, policy.slots_kept) for policy in policies]
    for number, text in enumerate(texts):
        full: Tensor | None = None
        for policy, result in zip(policies, found, strict=True):
            name = re.sub(r"[^\w.-]", "_", f"{number}-{policy.name}-{policy.budget}.npy")
            kept = folder.path / name if folder else None
            if kept and kept.exists():
                measured = np.load(kept, allow_pickle=False)
            else:
                if full is None:
                    full = torch.cat(list(log_probabilities(model, tokenizer, text, FullKV(), None)))
                measured = against(full, text, log_probabilities(model, tokenizer, text, policy, interval))
                if folder and kept:
                    folder.begin()
                    with BytesIO() as content:
                        np.save(content, measured)
                        write_atomically(kept, content.getvalue())
            result.add(measured, text)
            finished()
    return found


def against(full: Tensor, text: Text, chunks: Iterator[Tensor]) -> np.ndarray:
    """The three measures [t - 1, 3] of a text's log-probabilities, chunk after chunk, against the full cache's."""
    targets, measured, start = text.tokens[1:].to(full.device), [], 0
    for chunk in chunks:
        span = slice(start, min(start + len(chunk), len(targets)))
        measured.append(compare_chunk(full[span], chunk[: span.stop - start], targets[span]))
        start = span.stop
    return torch.cat(measured).double().cpu().numpy()
