"""The reasoner's tokenizer: one token a word, a digit, a name with the mark or relation behind it, or a delimiter.

Tokens keep the space before them, so decoding is plain concatenation and gives back the text exactly.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import ledger
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

USER, ASSISTANT, END, PAD, UNKNOWN = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>", "<|unknown|>"
SPECIAL = [PAD, UNKNOWN, END, USER, ASSISTANT]
THINK = ["<think>", "</think>"]

PIECES = r" ?[A-Z][a-z]+(?: =|:| plus| minus| times)| ?[A-Za-z]+| ?\d|\\boxed\{|[.?)]?\n\n|[.?)]?\n| ?\S"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def words() -> list[str]:
    """Every piece that the ledger can write, found by writing: sorted, so the ids do not depend on the draw."""
    splitter = pre_tokenizers.Split(Regex(PIECES), "isolated")
    digits = [prefix + str(digit) for digit in range(10) for prefix in ("", " ")]
    names = [f" {name}{mark}" for name in ledger.NAMES for mark in ("", ":", " =", " plus", " minus", " times")]
    found = {
        *digits,
        *names,
        *(f" {item}" for item in ledger.ITEMS),
        "\n\n",
        ".\n\n",
        "?",
        "?\n",
        "?\n\n",
        ")\n",
        ")\n\n",
    }
    for problem, rng in islice(ledger.problems(0, "train", range(1, 8)), 3000):
        text = (
            problem.question()
            + "\n"
            + ledger.response(rng, problem)
            + "".join(ledger.drill(rng, problem) + ledger.sums(rng))
        )
        for mark in THINK:
            text = text.replace(mark, "")
        found.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    return sorted(found)


def build() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; the prompt of a turn ends in "<think>" and a newline, as R1's does."""
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, *THINK, *words()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(THINK)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the tokenizer so that AutoTokenizer reads tokenizer.json as it stands.

    For Qwen2 models transformers 5 builds its own byte-level tokenizer, whatever class the folder names, unless the
    folder has an entry in auto_map; without trust in remote code it then falls back to the class named here.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.update(tokenizer_class="PreTrainedTokenizerFast", auto_map={"AutoTokenizer": [None, "tokenizer.Reasoner"]})
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    tokenizer = build()
    problem, rng = next(ledger.problems(random.randrange(99), "train", range(5, 6)))
    text = problem.question() + "\n\n" + ledger.response(rng, problem)
    print(text, len(tokenizer), tokenizer.tokenize(text), tokenizer.decode(tokenizer.encode(text)) == text, sep="\n")
