"""What a sentence of a chain of thought does: calc, verify or conclude."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from skipkv.steering.controller import MARKERS

CALC, VERIFY, CONCLUDE = "calc", "verify", "conclude"
FUNCTIONS = (CALC, VERIFY, CONCLUDE)
NON_EXECUTION = (VERIFY,)

_MARKED = re.compile("|".join(rf"\b{marker}\b" for marker in MARKERS))
_CONCLUDING = re.compile(r"\\boxed|\b(the|final) answer\b|^\s*(Therefore|Thus|Hence|In conclusion)\b", re.IGNORECASE)
_BLOCK = re.compile(r"\S[^\n]*")
_LISTED = re.compile(r"\s*(\d+|[a-zA-Z])[.)]$")  # "1." and "b)" open a list item, they do not end a sentence


def _punkt() -> PunktSentenceTokenizer:
    """Punkt with abbreviations of mathematical prose; nothing is downloaded."""
    parameters = PunktParameters()
    parameters.abbrev_types = {"e.g", "i.e", "etc", "vs", "cf", "eq", "fig", "no", "approx", "resp", "dr", "mr", "mrs"}
    return PunktSentenceTokenizer(parameters)


_PUNKT = _punkt()


@dataclass(frozen=True)
class Sentence:
    """One sentence: its text, its function, and where it stands in the whole text (character offsets)."""

    text: str
    function: str
    start: int
    end: int


def function_of(sentence: str) -> str:
    """One sentence's function: the paper's marker words tell verify (SkipKV, section 3.2), closing words conclude."""
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
        line, begin = block.group(), 0
        ends = [end for _, end in _PUNKT.span_tokenize(line)]
        for end in [*ends[:-1], len(line)]:
            piece = line[begin:end].strip()
            if end < len(line) and _LISTED.match(piece):
                continue
            start = block.start() + line.index(piece, begin)
            sentences.append(Sentence(piece, function_of(piece), start, start + len(piece)))
            begin = end
    return sentences


def thinking_of(text: str) -> str:
    """The part of an answer before "</think>", without "<think>"; all of it where there is no such mark."""
    return text.split("</think>")[0].split("<think>")[-1]
