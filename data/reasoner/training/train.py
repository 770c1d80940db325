"""Trains the embedded reasoner from nothing, on the CPU: a Qwen2 of 0.8 million parameters.

    python data/reasoner/training/train.py --out data/reasoner

Every batch is drawn from (seed, group of steps) alone, so a stopped run goes on where it was: the same command
continues from `<work>/checkpoint.pt`. What made the weights that ship stands in the model card.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import ledger
import matplotlib.pyplot as plt
import tokenizer as ledger_tokenizer
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

GROUP = 8  # steps whose sequences are drawn together, sorted by length and cut into batches of little padding
IGNORED = -100
VALIDATED = (3, 4, 6)  # chain lengths whose answers are checked along the way


@dataclass(frozen=True)
class Options:
    steps: int
    batch: int
    rate: float
    warmup: int
    recall: int
    drills: float
    facts: float
    seed: int
    hidden: int
    layers: int
    validate_every: int
    out: Path
    work: Path


def read_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--batch", type=int, default=24, help="sequences per step")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--recall", type=int, default=1000, help="first steps, on repeated random tokens")
    parser.add_argument("--drills", type=float, default=0.15, help="least share of drills among the sequences")
    parser.add_argument("--facts", type=float, default=0.35, help="share of fact drills among the drills; sums else")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--validate-every", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("data/reasoner"))
    parser.add_argument("--work", type=Path, default=Path("build/reasoner"), help="folder of the checkpoint and log")
    return Options(**vars(parser.parse_args()))


def build_model(options: Options, tokens: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def longest_chain(step: int, steps: int) -> int:
    """The curriculum: chains of up to 3 quantities at first, up to 6 from half of the run on."""
    return 3 + min(3, int(4 * step / (0.5 * steps)))


def drill_share(step: int, options: Options) -> float:
    """Share of drills among the sequences: most of them at first, `options.drills` from half of the run on."""
    return max(options.drills, 0.95 - 0.8 * step / (0.5 * options.steps))


def prompt_of(tokens: PreTrainedTokenizerFast, question: str) -> str:
    return tokens.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )


def encode(tokens: PreTrainedTokenizerFast, question: str, response: str) -> tuple[list[int], int]:
    """Token ids of prompt and response, and where the response starts."""
    prompt = prompt_of(tokens, question)
    prompt_ids = tokens.encode(prompt, add_special_tokens=False)
    return prompt_ids + tokens.encode(response, add_special_tokens=False) + [tokens.eos_token_id], len(prompt_ids)


def draw_recall(options: Options, vocabulary: int, group: int, step: int) -> tuple[Tensor, Tensor]:
    """Random tokens that repeat with a period of each sequence's own; labels start with the second period.

    Continuing them needs the look-up by content that all the answers rest on ("what came after this token before?").
    Learned on answers alone it does not come: copying from a fixed distance, or from facts not said yet, is nearly as
    good there, and 4,000 steps stayed at 80 % of the first look-ups.
    """
    source = torch.Generator().manual_seed((options.seed * 1_000_003 + group) * GROUP + step)
    period = torch.randint(8, 40, (options.batch, 1), generator=source)
    column = torch.arange(80).expand(options.batch, -1)
    ids = torch.randint(0, vocabulary, (options.batch, 40), generator=source).gather(1, column % period)
    return ids, ids.masked_fill(column <= period, IGNORED)


def draw_group(options: Options, tokens: PreTrainedTokenizerFast, group: int) -> list[tuple[Tensor, Tensor]]:
    """GROUP batches (ids, labels), each [sequences, tokens] int64; labels are IGNORED on prompt and padding."""
    if group * GROUP < options.recall:
        return [draw_recall(options, len(tokens), group, step) for step in range(GROUP)]
    most = longest_chain(group * GROUP, options.steps)
    source = ledger.problems(options.seed * 1_000_003 + group, "train", range(1, most + 1))
    drills = drill_share(group * GROUP, options)
    drawn = []
    for problem, rng in islice(source, GROUP * options.batch):
        answer = (problem.question(), ledger.response(rng, problem))
        if rng.random() < drills:
            answer = ledger.drill(rng, problem) if rng.random() < options.facts else ledger.sums(rng)
        drawn.append(encode(tokens, *answer))
    drawn.sort(key=lambda pair: len(pair[0]))
    batches = []
    for start in range(0, len(drawn), options.batch):
        rows = drawn[start : start + options.batch]
        ids = torch.full((len(rows), len(rows[-1][0])), tokens.pad_token_id)
        labels = torch.full_like(ids, IGNORED)
        for row, (sequence, response_start) in enumerate(rows):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            labels[row, response_start : len(sequence)] = torch.tensor(sequence[response_start:])
        batches.append((ids, labels))
    random.Random(group).shuffle(batches)
    return batches


def rate_at(step: int, options: Options) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < options.warmup:
        return options.rate * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def validate(model: Qwen2ForCausalLM, tokens: PreTrainedTokenizerFast, count: int, quantities: range) -> float:
    """Share of `count` validation problems whose greedy answer is right."""
    drawn = [problem for problem, _ in islice(ledger.problems(1, "validation", quantities), count)]
    prompts = [prompt_of(tokens, problem.question()) for problem in drawn]
    batch = tokens(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    model.eval()
    written = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=False,
        max_new_tokens=600,
        pad_token_id=tokens.pad_token_id,
        eos_token_id=tokens.eos_token_id,
    )
    model.train()
    texts = tokens.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text.endswith(f"\\boxed{{{p.answer()}}}") for text, p in zip(texts, drawn, strict=True)) / count


def draw_curve(log: list[dict[str, float]], path: Path) -> None:
    """The training curve: loss, and the share of right validation answers by the length of the chain."""
    figure, (loss, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    steps = [entry["step"] for entry in log]
    loss.semilogy(steps, [entry["loss"] for entry in log])
    loss.set(xlabel="step", ylabel="loss on the response, mean since the last point")
    for count in VALIDATED:
        right.plot(steps, [entry[f"right_{count}"] for entry in log], label=f"{count} quantities")
    right.set(xlabel="step", ylabel="right answers (30 validation problems)", ylim=(0, 1.02))
    right.legend(frameon=False)
    figure.savefig(path, dpi=120)


def save(model: Qwen2ForCausalLM, tokens: PreTrainedTokenizerFast, folder: Path) -> None:
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=1024, eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id
    )
    model.save_pretrained(folder)
    ledger_tokenizer.save(tokens, folder)


class Run:
    """Model, optimizer and log of one training run, with the checkpoint that it continues from."""

    def __init__(self, options: Options) -> None:
        self.options, self.step, self.log, self.seconds = options, 0, [], 0.0  # type: ignore[var-annotated]
        torch.manual_seed(options.seed)
        self.tokens = ledger_tokenizer.build()
        self.model = build_model(options, self.tokens)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.rate, betas=(0.9, 0.999), weight_decay=0.01
        )
        self.checkpoint = options.work / "checkpoint.pt"
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.log, self.seconds = state["step"], state["log"], state["seconds"]

    def keep(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "log": self.log,
            "seconds": self.seconds,
        }
        torch.save(state, self.checkpoint.with_suffix(".new"))
        os.replace(self.checkpoint.with_suffix(".new"), self.checkpoint)

    def learn(self, ids: Tensor, labels: Tensor) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.options)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()


def main() -> None:
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=options.steps, completed=run.step)
        losses: list[float] = []
        started = time.monotonic()
        while run.step < options.steps:
            for ids, labels in draw_group(options, run.tokens, run.step // GROUP):
                losses.append(run.learn(ids, labels))
                progress.update(task, completed=run.step, description=f"loss {losses[-1]:.3f}")
            if run.step % options.validate_every < GROUP or run.step >= options.steps:
                run.seconds += time.monotonic() - started
                scores = {f"right_{n}": validate(run.model, run.tokens, 30, range(n, n + 1)) for n in VALIDATED}
                run.log.append(
                    {"step": run.step, "loss": sum(losses) / len(losses), "minutes": run.seconds / 60, **scores}
                )
                progress.console.print(json.dumps(run.log[-1]))
                run.keep()
                losses, started = [], time.monotonic()
    save(run.model, run.tokens, options.out)
    draw_curve(run.log, options.out / "training.png")
    (options.out / "training_log.json").write_text(json.dumps(run.log, indent=1) + "\n")
    print(f"{options.steps} steps in {run.seconds / 60:.0f} minutes -> {options.out}")


if __name__ == "__main__":
    main()
