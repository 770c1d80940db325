"""The decoding loop's engine for transformers models, and the two ways to use it: `patch` and `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from skipkv.decoding import Result, Settings, decode
from skipkv.errors import BadInput
from skipkv.patches.binding import Binding, Steering
from skipkv.policies import Policy
from skipkv.sentences import delimiter_ids as find_delimiters


def default_interval(policy: Policy) -> int:
    """Tokens between two compressions: the paper's 128, or half the budget where that is less, but at least 16."""
    return 128 if policy.budget is None else max(16, min(128, policy.budget // 2))


def bind(
    model: Any,
    policy: Policy,
    *,
    steering: Steering | None,
    interval: int | None,
    tokenizer: Any,
    delimiter_ids: Iterable[int] | None,
) -> Binding:
    """A binding with the defaults filled in, not yet applied."""
    if delimiter_ids is None:
        delimiter_ids = find_delimiters(tokenizer) if tokenizer is not None and policy.reads_sentences else ()
    interval = default_interval(policy) if interval is None else interval
    return Binding(model, policy, interval=interval, steering=steering, delimiters=delimiter_ids)


@contextmanager
def patch(
    model: Any,
    policy: Policy,
    *,
    steering: Steering | None = None,
    interval: int | None = None,
    tokenizer: Any = None,
    delimiter_ids: Iterable[int] | None = None,
) -> Iterator[Binding]:
    """Within the `with`, the model's cache has a budget and the model is steered; plain `model.generate` works.

    Args:
        model: a transformers causal language model of a supported family.
        policy: what stays in the cache.
        steering: a steering vector, or None.
        interval: tokens between two compressions; see `default_interval`.
        tokenizer: read for the ids of sentence delimiters; loaded from the model's own folder where None is given and
            the policy reads sentences.
        delimiter_ids: those ids, instead of a tokenizer.

    Yields:
        The binding; `binding.cache.report()` tells what the last batch held.

    Raises:
        BadInput: the model, the policy and the steering do not go together.
    """
    if tokenizer is None and delimiter_ids is None and policy.reads_sentences:
        tokenizer = tokenizer_of(model)
    binding = bind(
        model, policy, steering=steering, interval=interval, tokenizer=tokenizer, delimiter_ids=delimiter_ids
    )
    binding.apply()
    try:
        yield binding
    finally:
        binding.undo()


def tokenizer_of(model: Any) -> Any:
    """The tokenizer that lies where the model was loaded from; None where there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.config._name_or_path)
    except (OSError, ValueError, KeyError):
        return None


def require_compiler(device: torch.device) -> None:
    """Raises BadInput where torch.compile would find no C++ compiler for the CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    if device.type == "cpu":
        try:
            get_cpp_compiler()
        except Exception as error:  # its class has moved between releases of torch
            raise BadInput("compile needs a C++ compiler on the CPU; install g++ or clang, or leave it off") from error


class TransformersEngine:
    """Prefill and step of a bound model, for `skipkv.decoding`.

    Args:
        chunk: prompt tokens taken in at once; whole prompts where None.
        compile: compile the step; prompts, which come in all shapes, are taken in as before.
    """

    def __init__(self, binding: Binding, rows: int, chunk: int | None = None, *, compile: bool = False) -> None:
        self.binding, self.rows, self.chunk = binding, rows, chunk
        self.cache = binding.new_cache(rows)
        self.cache.constant_shapes = compile
        if compile:
            require_compiler(self.cache.home)
        self.device = self.cache.home

    @torch.no_grad()
    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        """Takes in one prompt per row; [len(rows), vocab].

        Chunks start at the row's own first token, so a row is cut in the same places whatever its neighbours.
        """
        self.cache.clear(rows)
        longest = max(len(prompt) for prompt in prompts)
        chunk = self.chunk or longest
        logits: dict[int, Tensor] = {}
        for start in range(0, longest, chunk):
            end = start + chunk
            taken = [index for index, prompt in enumerate(prompts) if len(prompt) > start]
            more = [len(prompts[index]) > end for index in taken]
            self.cache.select([rows[index] for index in taken], prompt=True, more=more)
            logits.update(zip(taken, self._take_in([prompts[index][start:end] for index in taken]), strict=True))
        return torch.stack([logits[index] for index in range(len(prompts))])

    def _take_in(self, pieces: Sequence[Sequence[int]]) -> Tensor:
        width = max(len(piece) for piece in pieces)
        tokens = torch.tensor([[0] * (width - len(piece)) + list(piece) for piece in pieces], device=self.device)
        lengths = torch.tensor([len(piece) for piece in pieces], device=self.device)
        return self._forward(tokens, torch.arange(width, device=self.device) >= width - lengths[:, None])

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """One token for every row; [rows, vocab]."""
        with self.binding.compiled() if self.cache.constant_shapes else nullcontext():
            return self._forward(tokens[:, None], None)

    def release(self, rows: Sequence[int]) -> None:
        """Empties rows, so that they neither grow nor slow the others."""
        self.cache.clear(rows)

    def _forward(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        return self.binding.logits(tokens, real, self.cache, last=1)[:, -1]


def generate(
    model: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    policy: Policy,
    tokenizer: Any = None,
    steering: Steering | None = None,
    delimiter_ids: Iterable[int] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    batch_size: int = 8,
    schedule: str = "continuous",
    max_new_tokens: int = 1024,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    interval: int | None = None,
    prefill_chunk: int | None = None,
    compile: bool = False,
    requests: Sequence[int] | None = None,
) -> Iterator[Result]:
    """Answers many prompts in batches under a policy; yields each answer as soon as it is finished.

    A row's tokens do not depend on its neighbours, on padding or on the order: request number i draws with (seed, i).

    Args:
        model: a transformers causal language model of a supported family.
        prompts: strings (then `tokenizer` is needed; special tokens are added only where the text has no chat markup of
            its own), or lists of token ids.
        policy: what stays in the cache.
        steering: a steering vector, or None.
        delimiter_ids: ids of tokens that end a sentence; found with the tokenizer where None.
        eos_token_id: ids that end an answer; the model's own where None.
        batch_size, schedule, max_new_tokens, temperature, top_p, top_k, seed, interval, prefill_chunk, compile: see
            `skipkv.decoding.Settings`.
        requests: a number for each prompt, which its result carries and its randomness comes from; its place in
            `prompts` where None.

    Yields:
        `Result`, in the order in which answers end.

    Raises:
        BadInput: something does not fit together, before the first answer.
    """
    settings = Settings(
        batch_size, schedule, max_new_tokens, temperature, top_p, top_k, seed, interval, prefill_chunk, compile
    )
    ids = [encode(prompt, tokenizer) for prompt in prompts]
    binding = bind(
        model, policy, steering=steering, interval=interval, tokenizer=tokenizer, delimiter_ids=delimiter_ids
    )
    if eos_token_id is None:
        eos_token_id = model.generation_config.eos_token_id
    eos = [] if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    numbered = dict(zip(range(len(ids)) if requests is None else requests, ids, strict=True))
    return _answers(binding, numbered, settings, eos, tokenizer)


def _answers(
    binding: Binding,
    ids: dict[int, list[int]],
    settings: Settings,
    eos: list[int],
    tokenizer: Any,
) -> Iterator[Result]:
    rows = min(settings.batch_size, max(1, len(ids)))
    binding.apply()
    try:
        engine = TransformersEngine(binding, rows, settings.prefill_chunk, compile=settings.compile)
        for result in decode(engine, ids, settings, rows=rows, eos=eos):
            text = "" if tokenizer is None else tokenizer.decode(result.tokens, skip_special_tokens=True)
            yield replace(result, text=text, peak_kv_bytes=engine.cache.peak_kv_bytes)
    finally:
        binding.undo()


def encode(prompt: str | Sequence[int], tokenizer: Any) -> list[int]:
    """Token ids of a prompt.

    Raises:
        BadInput: the prompt is text and there is no tokenizer.
    """
    if not isinstance(prompt, str):
        return [int(token) for token in prompt]
    if tokenizer is None:
        raise BadInput("prompts are text; pass a tokenizer, or lists of token ids")
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False)
    start = tokenizer.bos_token_id
    return ids if start is None or ids[:1] == [start] or not tokenizer_adds_start(tokenizer) else [start, *ids]


def tokenizer_adds_start(tokenizer: Any) -> bool:
    """Whether the tokenizer puts its start token before a text."""
    return bool(tokenizer.encode("a")[:1] == [tokenizer.bos_token_id])
