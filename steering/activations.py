"""Hidden states at labelled sentences, for every layer asked for, streamed to a file as they come."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from skipkv.errors import BadInput
from skipkv.patches.families import parts_of
from skipkv.sentences import delimiter_ids, in_table, token_table
from skipkv.steering.functions import Labeller, functions_of

# Which tokens stand for a sentence: its own delimiter (the paper's choice); all of its tokens, on average; the token
# behind it; or the delimiter before it, from which the model decides what the sentence will be.
POSITIONS = ("end", "mean", "next", "before")


@dataclass(frozen=True)
class Trace:
    """A prompt and what the model thought about it."""

    prompt: str
    thinking: str


@dataclass(frozen=True)
class Activations:
    """Hidden states entering each layer, one per sentence.

    Attributes:
        layers: which layers, in the order of `states`.
        states: [layers, sentences, hidden] float32, in a file that is gone when the array is.
        functions: of each sentence.
        traces: [sentences] int64, the trace of each sentence.
    """

    layers: tuple[int, ...]
    states: np.ndarray
    functions: list[str]
    traces: np.ndarray


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of one trace stand among its tokens.

    Attributes:
        tokens: [t] int64, prompt and thinking.
        starts, ends: [sentences] int64, first and last token of each.
    """

    tokens: Tensor
    starts: Tensor
    ends: Tensor

    def bounds(self, position: str) -> tuple[Tensor, Tensor]:
        """First and last token, [sentences] int64 each, of what stands for each sentence."""
        last = len(self.tokens) - 1
        return {
            "end": (self.ends, self.ends),
            "mean": (self.starts, self.ends),
            "next": ((self.ends + 1).clamp(max=last),) * 2,
            "before": ((self.starts - 1).clamp(min=0),) * 2,
        }[position]


def cut(trace: Trace, tokenizer: Any, delimiters: Tensor) -> Sentences:
    """The tokens of a trace and its sentences: runs of the thinking that end at a delimiter token."""
    prompt = tokenizer.encode(trace.prompt, add_special_tokens=False)
    tokens = torch.tensor(prompt + tokenizer.encode(trace.thinking, add_special_tokens=False), dtype=torch.int64)
    ends = in_table(delimiters, tokens).nonzero()[:, 0]
    ends = ends[ends >= len(prompt)]
    starts = torch.cat([torch.tensor([len(prompt)]), ends[:-1] + 1])[: len(ends)]
    return Sentences(tokens, starts, ends)


@torch.no_grad()
def record(
    model: Any,
    tokenizer: Any,
    traces: Sequence[Trace],
    layers: Sequence[int],
    position: str,
    *,
    label: Labeller | None = None,
    batch_size: int = 8,
    finished: Callable[[], None] = lambda: None,
) -> Activations:
    """Runs the traces through the model and takes the state of every sentence of the thinking.

    Args:
        layers: indices of the layers whose inputs are taken.
        position: one of POSITIONS.
        label: tells the sentences' functions; our own classifier where None.
        batch_size: traces in one pass. They are padded on the right, so that a trace's states are its own.
        finished: called after each trace.

    Raises:
        BadInput: no trace holds a sentence.
    """
    parts = parts_of(model)
    delimiters = token_table(delimiter_ids(tokenizer), torch.device("cpu"))
    pieces = [cut(trace, tokenizer, delimiters) for trace in traces]
    texts = [
        tokenizer.decode(piece.tokens[start : end + 1])
        for piece in pieces
        for start, end in zip(piece.starts.tolist(), piece.ends.tolist(), strict=True)
    ]
    if not texts:
        raise BadInput("the traces hold no sentence that ends in a newline; give reasoning traces")
    order = sorted(range(len(traces)), key=lambda index: len(pieces[index].tokens))
    owners = []
    with tempfile.TemporaryFile() as file:
        for start in range(0, len(order), batch_size):
            batch = [index for index in order[start : start + batch_size] if len(pieces[index].ends)]
            if batch:
                write_states(model, parts, [pieces[index] for index in batch], layers, position, file)
            owners += [index for index in batch for _ in pieces[index].ends]
            for _ in order[start : start + batch_size]:
                finished()
        shape = (len(owners), len(layers), parts.shape.hidden)
        states = np.memmap(file, np.float32, "r", shape=shape).transpose(1, 0, 2)
    # Sentences came in the order of their traces' lengths; labels were read in the order of the traces.
    labels, first = functions_of(texts, label), np.cumsum([0, *(len(piece.ends) for piece in pieces)])
    functions = [name for index in order for name in labels[first[index] : first[index + 1]]]
    return Activations(tuple(layers), states, functions, np.array(owners))


def write_states(
    model: Any, parts: Any, pieces: Sequence[Sentences], layers: Sequence[int], position: str, file: IO[bytes]
) -> None:
    """Appends [sentences, layers, hidden] float32 of a batch of traces to the file."""
    device = parts.shape.devices[0]
    tokens = pad_sequence([piece.tokens for piece in pieces], batch_first=True).to(device)
    mask = pad_sequence([torch.ones_like(piece.tokens) for piece in pieces], batch_first=True).to(device)
    taken: list[Tensor] = []

    def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = []
        for row, piece in enumerate(pieces):
            first, last = (bound.to(hidden.device) for bound in piece.bounds(position))
            if position == "mean":
                sums = torch.nn.functional.pad(hidden[row].float().cumsum(dim=0), (0, 0, 1, 0))
                rows.append((sums[last + 1] - sums[first]) / (last + 1 - first)[:, None])
            else:
                rows.append(hidden[row, last].float())
        taken.append(torch.cat(rows).cpu())

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(parts.layers[layer].register_forward_pre_hook(take, with_kwargs=True).remove)
        parts.decoder(input_ids=tokens, attention_mask=mask, use_cache=False)
    file.write(torch.stack(taken, dim=1).numpy().tobytes())
    file.flush()
