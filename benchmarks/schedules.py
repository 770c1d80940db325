"""Continuous against static and grouped batches, on requests whose answers differ tenfold in length.

    python benchmarks/schedules.py [--requests 64] [--batch 8] [--json FILE]

The model and the cache are real; each request ends where a script says, because random text ends nowhere in
particular. All schedules write the same tokens, in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import decode as benchmark
import torch
from torch import Tensor

from skipkv import policies
from skipkv.decoding import Settings, decode
from skipkv.files import write_atomically
from skipkv.patches.binding import Binding
from skipkv.patches.engine import TransformersEngine
from skipkv.scheduling import SCHEDULES

END = 2


class ScriptedEngine(TransformersEngine):
    """An engine that writes END once a request has its scripted length."""

    def __init__(self, binding: Binding, rows: int, prompts: Sequence[Sequence[int]], lengths: Tensor) -> None:
        super().__init__(binding, rows)
        self.length_of = {tuple(prompt): int(length) for prompt, length in zip(prompts, lengths, strict=True)}
        self.left = torch.zeros(rows, dtype=torch.int64)

    def prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        self.left[list(rows)] = torch.tensor([self.length_of[tuple(prompt)] for prompt in prompts])
        return self.scripted(super().prefill(rows, prompts), self.left[list(rows)])

    def step(self, tokens: Tensor) -> Tensor:
        self.left -= 1
        return self.scripted(super().step(tokens), self.left)

    @staticmethod
    def scripted(logits: Tensor, left: Tensor) -> Tensor:
        logits[:, END] = torch.where(left <= 1, torch.inf, -torch.inf)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--shortest", type=int, default=20, help="new tokens; the longest answer has ten times as many")
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    model, delimiters, name = benchmark.load("smollm2", torch.float32, "cpu")
    source = torch.Generator().manual_seed(0)
    lengths = (options.shortest * 10 ** torch.rand(options.requests, generator=source)).long()
    prompts = torch.randint(5, model.config.vocab_size, (options.requests, 32), generator=source).tolist()
    rows: list[dict[str, Any]] = []
    for schedule in SCHEDULES:
        binding = Binding(
            model, policies.SkipKV(budget=options.budget), interval=64, steering=None, delimiters=delimiters
        )
        binding.apply()
        engine = ScriptedEngine(binding, options.batch, prompts, lengths)
        settings = Settings(options.batch, schedule, 10 * options.shortest + 1)
        started = time.perf_counter()
        written = sum(
            len(r.tokens) for r in decode(engine, dict(enumerate(prompts)), settings, rows=options.batch, eos=[END])
        )
        seconds = time.perf_counter() - started
        binding.undo()
        assert written == int(lengths.sum())
        rows.append({"name": schedule, "tokens": written, "seconds": seconds, "tokens_per_second": written / seconds})
        rows[-1]["ratio_to_static"] = rows[0]["seconds"] / seconds
    benchmark.show(rows)
    if options.json:
        write_atomically(options.json, json.dumps({"model": name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
