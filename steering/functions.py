"""What a sentence of a chain of thought does: calc, verify or conclude."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skipkv.steering.controller import MARKERS

CALC, VERIFY, CONCLUDE = "calc", "verify", "conclude"
FUNCTIONS = (CALC, VERIFY, CONCLUDE)
NON_EXECUTION = (VERIFY,)

_MARKED = re.compile("|".join(rf"\b{marker}\b" for marker in MARKERS))
_CONCLUDING = re.compile(r"\\boxed|\b(the|final) answer\b|^\s*(Therefore|Thus|Hence|In conclusion)\b", re.IGNORECASE)
_BLOCK = re.compile(r"\S[^\n]*")
# A sentence ends at . ! or ? that is followed by a space and a capital: so not in "3.5", "e.g. so", or "1. first".
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!^\d)(?<!\.\.)[.!?][)\"']*\s+(?=[A-Z\"'(\\$])")


@dataclass(frozen=True)
class Sentence:
    """One sentence: its text, its function, and where it stands in the whole text (character offsets)."""

    text: str
    function: str
    start: int
    end: int


def function_of(sentence: str) -> str:
    """The function of one sentence: the paper's marker words tell verify (SkipKV, section 3.2), closing words conclude."""
    if _MARKED.search(sentence):
        return VERIFY
    return CONCLUDE if _CONCLUDING.search(sentence) else CALC


def functions_of(sentences: Sequence[str]) -> list[str]:
    """The function of each sentence."""
    return [function_of(sentence) for sentence in sentences]


def label_sentences(text: str) -> list[Sentence]:
    """Cuts a chain of thought into sentences and labels them; together they cover all that is not blank."""
    sentences = []
    for block in _BLOCK.finditer(text):
        starts = [0, *(match.end() for match in _END.finditer(block.group()))]
        for start, end in zip(starts, [*starts[1:], len(block.group())], strict=True):
            piece = block.group()[start:end].rstrip()
            if piece:
                begin = block.start() + start
                sentences.append(Sentence(piece, function_of(piece), begin, begin + len(piece)))
    return sentences


def thinking_of(text: str) -> str:
    """The part of an answer before "</think>", without "<think>"; all of it where there is no such mark."""
    return text.split("</think>")[0].split("<think>")[-1]
