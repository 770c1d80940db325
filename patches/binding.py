"""Binds the cache to a transformers model, and takes everything off again.

What goes on: the attention function "skipkv" (in transformers' attention interface) with a reference on each attention
module; hooks on the decoder (which cache, where do tokens go, compress at the end), on its final norm (sentences) and
on one layer (steering). All state of a batch lives in its cache, none of it on the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from skipkv.attention import attend, attend_packed, attend_with_weights
from skipkv.cache import BudgetedCache, take
from skipkv.errors import BadInput, require_at_least
from skipkv.patches.families import parts_of
from skipkv.policies import Policy

NAME = "skipkv"  # of the attention function, and of the reference on each attention module
FLASH = "flash_attention_2"
BACKENDS = ("sdpa", "eager", FLASH)


class SteeredRows(Protocol):
    """Steering of one batch, row by row."""

    def clear(self, rows: Tensor) -> None:
        """Forgets rows [n] int64."""

    def read(self, rows: Tensor, tokens: Tensor, real: Tensor) -> None:
        """Takes in the tokens [n, t] of the coming pass; `real` is False at padding."""

    def shift(self, hidden: Tensor) -> Tensor:
        """The steered hidden states [n, t, hidden] that enter the layer."""


class Steering(Protocol):
    """What `patch` accepts as steering: a layer, and steering for a new batch."""

    @property
    def layer(self) -> int:
        """Index of the decoder layer whose input is shifted."""

    def start(self, rows: int, layers: int, hidden: int, device: torch.device) -> SteeredRows:
        """Steering for a batch of `rows`; raises BadInput when it is not made for such a model."""


def refuse(self: Any, *_: Any, **__: Any) -> None:
    """What a cache with a budget cannot do: rows are neither copied, reordered nor taken back."""
    raise BadInput(
        "a patched model decodes greedily or by sampling; beam search, assisted and contrastive decoding reorder or "
        "take back the cache, which evicted tokens do not allow: set num_beams=1 and pass no assistant"
    )


class SteeredCache(BudgetedCache):
    """A cache together with the steering of the same batch."""

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = refuse
    is_croppable = True  # newer transformers ask first; `crop` then says why not

    steered: SteeredRows | None = None

    def clear(self, rows: Any) -> None:
        super().clear(rows)
        if self.steered:
            self.steered.clear(torch.tensor(list(rows), device=self.home))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention over a row's slots, in the form that transformers' attention interface calls."""
    binding: Binding = getattr(module, NAME)
    cache, span = binding.cache, binding.cache.span
    mask = None if span.mask is None else span.mask.to(query.device)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = None
    if cache.policy.reads_attention or binding.backend == "eager":
        out, weights = attend_with_weights(query, key, value, mask, scale, span.real.to(query.device))
        weights = weights if cache.policy.reads_attention else None
    elif binding.backend == FLASH:
        if span.order is None:  # slots of a row are in order already
            by_age = (key, value)
        else:
            order = span.order[:, None].expand(-1, key.shape[1], -1).to(key.device)
            by_age = (take(key, order), take(value, order))
        out = attend_packed(query, *by_age, scale, span.query_packing, span.key_packing)
    else:
        out = attend(query, key, value, mask, scale)
    cache.layers[module.layer_idx].after_attention(query, key, value, weights)
    return out, None


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


class Binding:
    """One model bound to one policy. `apply` puts the patch on, `undo` takes it off."""

    def __init__(
        self, model: Any, policy: Policy, *, interval: int, steering: Steering | None, delimiters: Iterable[int]
    ) -> None:
        self.model, self.interval, self.steering = model, interval, steering
        self.delimiters = sorted(set(delimiters))
        self.parts = parts_of(model)
        self.policy = policy.for_model(self.parts.shape, self.parts.decoder.rotary_emb)
        if policy.reads_sentences and not self.delimiters:
            raise BadInput(
                f"{policy.name} reads sentences; pass a tokenizer or delimiter_ids, so that it knows their ends"
            )
        require_at_least("interval", interval, 1)
        if steering and not 0 <= steering.layer < len(self.parts.layers):
            raise BadInput(
                f"steering layer is {steering.layer}; the model has layers 0 to {len(self.parts.layers) - 1}"
            )
        if steering:  # says now, not in the middle of a run, when the vector is another model's
            steering.start(1, len(self.parts.layers), self.parts.shape.hidden, self.parts.shape.devices[steering.layer])
        self.signature = inspect.signature(type(self.parts.decoder).forward)
        # transformers 5.2x calls the argument `cache`, releases before it `past_key_values`.
        self.cache_name = "cache" if "cache" in self.signature.parameters else "past_key_values"
        self.cache: SteeredCache
        self._compiled: Callable[..., Any] | None = None
        self._undo = ExitStack()

    def apply(self) -> None:
        """Puts the patch on.

        Raises:
            BadInput: the model is patched already, or its attention is not one of BACKENDS.
        """
        config = self.model.config
        before = config._attn_implementation
        if before == NAME:
            raise BadInput("the model is patched already; leave the first patch before the next one")
        if before not in BACKENDS:
            raise BadInput(f"attention '{before}' is not supported; load the model with one of {', '.join(BACKENDS)}")
        if before == FLASH and self.parts.shape.dtype not in (torch.float16, torch.bfloat16):
            raise BadInput(f"{FLASH} works in float16 and bfloat16; the model is in {self.parts.shape.dtype}")
        self.backend = before
        with ExitStack() as stack:
            stack.callback(setattr, config, "_attn_implementation", before)
            config._attn_implementation = NAME
            for module in self.parts.attentions:
                stack.callback(delattr, module, NAME)
                object.__setattr__(module, NAME, self)
            decoder = self.parts.decoder
            handles = [
                decoder.register_forward_pre_hook(self._begin, with_kwargs=True),
                decoder.register_forward_hook(self._finish),
                self.parts.norm.register_forward_hook(self._observe),
            ]
            if self.steering:
                layer = self.parts.layers[self.steering.layer]
                handles.append(layer.register_forward_pre_hook(self._steer, with_kwargs=True))
            for handle in handles:
                stack.callback(handle.remove)
            self._undo = stack.pop_all()

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Within the `with`, the decoder's pass is compiled; on a GPU it becomes CUDA graphs.

        The hooks on the decoder run outside of the compiled code, so that counting on the host stays out of it.
        """
        decoder = self.parts.decoder
        if self._compiled is None:
            mode = "reduce-overhead" if self.parts.shape.devices[0].type == "cuda" else "default"
            self._compiled = torch.compile(decoder.forward, mode=mode, dynamic=False)
        decoder.forward = self._compiled
        try:
            yield
        finally:
            del decoder.forward  # the class's own again

    def undo(self) -> None:
        """Takes the patch off: the model is what it was."""
        self._undo.close()

    def new_cache(self, rows: int) -> SteeredCache:
        """An empty cache for a batch of `rows`, with its steering."""
        shape = self.parts.shape
        cache = SteeredCache(self.policy, shape, rows, interval=self.interval, delimiters=self.delimiters)
        if self.steering:
            device = shape.devices[self.steering.layer]
            cache.steered = self.steering.start(rows, len(self.parts.layers), shape.hidden, device)
        return cache

    def logits(self, tokens: Tensor, real: Tensor | None, cache: SteeredCache, last: int = 0) -> Tensor:
        """Next-token logits [n, t, vocab] of tokens [n, t] that go into the cache; of the `last` ones, 0 for all."""
        output = self.model(
            input_ids=tokens, attention_mask=real, use_cache=True, logits_to_keep=last, **{self.cache_name: cache}
        )
        return output.logits

    # -- hooks, in the order in which a pass meets them ----------------------------------------------------------------

    def _begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        bound = self.signature.bind(module, *args, **kwargs)
        given = dict(bound.arguments)
        given.update(given.pop("kwargs", {}))
        given.pop("self")
        tokens = given.get("input_ids")
        if tokens is None:
            raise BadInput(
                "a patched model reads input_ids (sentences and steering look at them); inputs_embeds was given"
            )
        cache = given.pop("past_key_values", None) or given.pop("cache", None)
        if not isinstance(cache, SteeredCache):
            if cache is not None and (type(cache) is not DynamicCache or cache.get_seq_length() > 0):
                raise BadInput(
                    f"past_key_values is a {type(cache).__name__} of {cache.get_seq_length()} tokens; a patched model "
                    "brings its own cache: pass none, and no cache_implementation"
                )
            cache = self.new_cache(tokens.shape[0])
        mask = given.get("attention_mask")
        if mask is not None and mask.dim() != 2:
            raise BadInput(f"attention_mask has {mask.dim()} dimensions; a patched model reads a 2-D padding mask")
        self.cache = cache
        span = cache.begin(tokens.to(cache.home), None if mask is None else mask[:, -tokens.shape[1] :].to(cache.home))
        if cache.steered:
            cache.steered.read(span.rows, span.tokens, span.real)
        given.update(position_ids=span.positions.to(tokens.device), attention_mask=None)
        given[self.cache_name] = cache
        if "cache_position" in self.signature.parameters:  # transformers 4: else it counts on the host, step by step
            given["cache_position"] = span.positions[0].to(tokens.device)
        return (), given

    def _steer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        steered = self.cache.steered
        assert steered is not None
        if args:
            return (steered.shift(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": steered.shift(kwargs["hidden_states"])}

    def _observe(self, module: nn.Module, args: Any, hidden: Tensor) -> None:
        self.cache.observe(hidden)

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        self.cache.finish()
