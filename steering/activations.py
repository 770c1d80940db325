"""Hidden states at the ends of labelled sentences, for every layer asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skipkv.errors import BadInput
from skipkv.patches.families import parts_of
from skipkv.sentences import delimiter_ids, in_table, token_table
from skipkv.steering.functions import function_of

POSITIONS = ("end", "before")


@dataclass(frozen=True)
class Trace:
    """A prompt and what the model thought about it."""

    prompt: str
    thinking: str


@dataclass(frozen=True)
class Activations:
    """Hidden states entering each layer, at one token per sentence.

    Attributes:
        states: [layers, sentences, hidden] float32.
        functions: of each sentence.
        traces: [sentences] int64, the trace of each sentence.
    """

    states: np.ndarray
    functions: list[str]
    traces: np.ndarray


@torch.no_grad()
def record(model: Any, tokenizer: Any, traces: Sequence[Trace], position: str, progress: Iterable[int]) -> Activations:
    """Runs the traces through the model and takes the state of every sentence of the thinking.

    Args:
        position: "end", the sentence's own delimiter (the paper's choice), or "before", the delimiter in front of it,
            from which the model decides what the sentence will be.
        progress: iterates over the indices of the traces, and may show a bar.

    Raises:
        BadInput: no trace holds a sentence.
    """
    device = parts_of(model).shape.devices[0]
    table = token_table(delimiter_ids(tokenizer), device)
    states: list[Tensor] = []
    functions: list[str] = []
    owners: list[int] = []
    for index in progress:
        trace = traces[index]
        prompt = tokenizer.encode(trace.prompt, add_special_tokens=False)
        tokens = torch.tensor([prompt + tokenizer.encode(trace.thinking, add_special_tokens=False)], device=device)
        ends = [end for end in in_table(table, tokens[0]).nonzero()[:, 0].tolist() if end >= len(prompt)]
        starts = [len(prompt), *(end + 1 for end in ends[:-1])]
        if not ends:
            continue
        hidden = model(input_ids=tokens, output_hidden_states=True, use_cache=False).hidden_states
        at = ends if position == "end" else [max(0, start - 1) for start in starts]
        states.append(torch.stack([layer[0, at].float().cpu() for layer in hidden[: len(parts_of(model).layers)]]))
        functions += [function_of(tokenizer.decode(tokens[0, a : b + 1])) for a, b in zip(starts, ends, strict=True)]
        owners += [index] * len(ends)
    if not states:
        raise BadInput("the traces hold no sentence that ends in a newline; give reasoning traces")
    return Activations(torch.cat(states, dim=1).numpy(), functions, np.array(owners))
