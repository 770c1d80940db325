"""The decoding loop: a batch of rows, each writing the answer of one request until it ends.

The loop drives an `Engine`; what a model is and where its keys lie is the engine's business (`skipkv.patches` has one
for transformers models).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from skipkv.errors import BadInput, require_at_least
from skipkv.sampling import Sampling
from skipkv.scheduling import SCHEDULES, Queue
from skipkv.sentences import in_table, token_table


class Engine(Protocol):
    """What the loop needs of a model with its cache."""

    device: torch.device

    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        """Empties the rows, takes in one prompt each, and returns the next token's logits [len(rows), vocab]."""

    def step(self, tokens: Tensor) -> Tensor:
        """Takes in one token [rows] per row and returns the next token's logits [rows, vocab]."""

    def release(self, rows: Sequence[int]) -> None:
        """Empties rows whose answer is finished."""


@dataclass(frozen=True)
class Settings:
    """How prompts are answered, whatever the policy.

    Attributes:
        batch_size: rows that decode together.
        schedule: "static", "grouped" (sorted by prompt length) or "continuous" (a finished row takes the next prompt).
        max_new_tokens: per answer.
        temperature, top_p, top_k, seed: sampling; temperature 0 is greedy.
        interval: tokens between two compressions; the policy's default where None.
        prefill_chunk: tokens of a prompt that are taken in at once; the whole prompt where None.
        compile: compile the decode step (CUDA graphs on a GPU).

    Raises:
        BadInput: a value is out of range.
    """

    batch_size: int = 8
    schedule: str = "continuous"
    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    interval: int | None = None
    prefill_chunk: int | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_new_tokens", "interval", "prefill_chunk"):
            if (value := getattr(self, name)) is not None:
                require_at_least(name, value, 1)
        if self.schedule not in SCHEDULES:
            raise BadInput(f"unknown schedule '{self.schedule}'; known are {', '.join(SCHEDULES)}")
        self.sampling()

    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.seed)


@dataclass(frozen=True)
class Result:
    """One finished answer.

    Attributes:
        index: number of the request: its prompt's place in the list of prompts.
        prompt_tokens: length of the prompt.
        tokens: ids of the new tokens, the end token included.
        finish_reason: "eos" or "length".
        text: the tokens decoded without special tokens; empty where there is no tokenizer.
        peak_kv_bytes: keys and values that the batch held at most until now.
    """

    index: int
    tokens: list[int]
    finish_reason: str
    text: str = ""
    prompt_tokens: int = 0
    peak_kv_bytes: int = 0


class Session:
    """One batch while it decodes: which request each row holds, and what it has written.

    Attributes:
        request: [rows] int64, the request in each row; -1 in an idle row.
        count: [rows] int64, tokens written.
        written: [rows, max_new_tokens] int64.
    """

    def __init__(self, engine: Engine, rows: int, max_new_tokens: int, eos: Iterable[int], sampling: Sampling) -> None:
        self.engine, self.rows, self.limit, self.sampling = engine, rows, max_new_tokens, sampling
        self.eos = token_table(eos, engine.device)
        self.request = torch.full((rows,), -1, device=engine.device)
        self.count = torch.zeros(rows, dtype=torch.int64, device=engine.device)
        self.written = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=engine.device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=engine.device)
        self.steps = 0

    def admit(self, taken: dict[int, int], prompts: Mapping[int, Sequence[int]]) -> None:
        """Lets requests into rows (row -> request): takes in their prompts and writes each one's first token."""
        rows = torch.tensor(list(taken), device=self.engine.device)
        self.request[rows] = torch.tensor(list(taken.values()), device=self.engine.device)
        self.count[rows] = 0
        self._write(rows, self.engine.prefill(list(taken), [prompts[request] for request in taken.values()]))

    def step(self) -> None:
        """Every row writes one more token; idle rows write into the void."""
        logits = self.engine.step(self.last)
        self._write(torch.arange(self.rows, device=self.engine.device), logits)
        self.steps += 1

    def _write(self, rows: Tensor, logits: Tensor) -> None:
        tokens = self.sampling.draw(logits, self.request[rows], self.count[rows])
        self.last[rows] = tokens
        self.written[rows, self.count[rows].clamp(max=self.limit - 1)] = tokens
        self.count[rows] += 1

    def collect(self) -> list[tuple[int, Result]]:
        """Takes finished answers out of their rows: (row, result). The one place where the host waits."""
        ended = in_table(self.eos, self.last)
        done = (self.request >= 0) & (ended | (self.count >= self.limit))
        rows = done.nonzero()[:, 0]
        if not len(rows):
            return []
        columns = (rows, self.request[rows], self.count[rows], ended[rows].long())
        self.request[rows] = -1
        finished = [
            (row, Result(request, self.written[row, :count].tolist(), "eos" if eos else "length"))
            for row, request, count, eos in torch.stack(columns, dim=1).tolist()
        ]
        self.engine.release([row for row, _ in finished])
        return finished


def decode(
    engine: Engine, prompts: Mapping[int, Sequence[int]], settings: Settings, *, rows: int, eos: Iterable[int]
) -> Iterator[Result]:
    """Answers prompts (request number -> token ids), `rows` at a time; yields each answer when it is finished.

    Raises:
        BadInput: a prompt is empty.
    """
    if empty := [request for request, prompt in prompts.items() if not len(prompt)]:
        raise BadInput(f"prompt {empty[0]} is empty; a prompt has at least one token")
    queue = Queue({request: len(prompt) for request, prompt in prompts.items()}, settings.schedule)
    session = Session(engine, rows, settings.max_new_tokens, eos, settings.sampling())
    free = list(range(rows))
    while queue.waiting or len(free) < rows:
        if taken := queue.next_for(free, rows):
            free = [row for row in free if row not in taken]
            session.admit(taken, prompts)
        else:
            session.step()
        for row, result in session.collect():
            free.append(row)
            yield replace(result, prompt_tokens=len(prompts[result.index]))
