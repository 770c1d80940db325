"""What a sentence of a chain of thought does: calc, verify, conclude, or transition to another approach.

The labeller is a small classifier, fitted on the project's own labelled sentences (data/sentences) when it is first
used; the paper's three marker words are there as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from skipkv.errors import BadInput
from skipkv.files import read_jsonl
from skipkv.steering.controller import MARKERS

CALC, VERIFY, CONCLUDE, TRANSITION = "calc", "verify", "conclude", "transition"
FUNCTIONS = (CALC, VERIFY, CONCLUDE, TRANSITION)
NON_EXECUTION = (VERIFY, TRANSITION)
SENTENCES = Path(__file__).resolve().parent.parent / "data" / "sentences" / "sentences.jsonl"

Labeller = Callable[[Sequence[str]], list[str]]

_MARKED = re.compile("|".join(rf"\b{marker}\b" for marker in MARKERS))
_CONCLUDING = re.compile(r"\\boxed|\b(the|final) answer\b|^\s*(Therefore|Thus|Hence|In conclusion)\b", re.IGNORECASE)

# -- labels ------------------------------------------------------------------------------------------------------------


def by_keywords(sentences: Sequence[str]) -> list[str]:
    """The paper's marker words tell verify (SkipKV, section 3.2), closing words conclude; all else is calc."""

    def one(sentence: str) -> str:
        return VERIFY if _MARKED.search(sentence) else CONCLUDE if _CONCLUDING.search(sentence) else CALC

    return [one(sentence) for sentence in sentences]


def _normal(sentence: str) -> str:
    """Lower case, with every number and formula as 0: the words tell the function, not what is computed."""
    plain = sentence.lower().replace("\u2019", "'")
    return re.sub(r"\$[^$]*\$|\\\w+|\d+([.,]\d+)*", "0", plain)


@dataclass(frozen=True)
class Cues:
    """A sentence as the words that tell its function: what it is about is masked, for the classifier not to learn it.

    Attributes:
        known: the words that are kept; all are where it is empty.
    """

    known: frozenset[str] = frozenset()

    def words(self, sentence: str) -> list[str]:
        """Words and the marks ? ! : = ;, in order."""
        found = re.findall(r"[\w']+|[?!:=;]", _normal(sentence))
        return [word if not self.known or word in self.known or not word[0].isalpha() else "*" for word in found]

    def runs(self, sentence: str) -> list[str]:
        """Words, pairs and triples."""
        words = self.words(sentence)
        return [" ".join(words[at : at + count]) for count in (1, 2, 3) for at in range(len(words) - count + 1)]

    def openings(self, sentence: str) -> list[str]:
        """The first one to six words: there most sentences say what they are up to."""
        words = self.words(sentence)
        return [" ".join(words[:count]) for count in range(1, 7)]


def cues_beside(path: Path) -> Cues:
    """The words of the patterns that lie beside our sentences; other labelled sentences keep all their words."""
    if path != SENTENCES:
        return Cues()
    return Cues(frozenset(re.findall(r"[\w']+", path.with_name("patterns.txt").read_text().lower())))


@lru_cache(maxsize=4)
def fitted(path: Path = SENTENCES) -> Labeller:
    """A labeller fitted on labelled sentences: JSONL with `text` and `function`.

    TF-IDF of runs of cue words, and of openings, under logistic regression.

    Raises:
        BadInput: the file is missing, has a broken line, or holds fewer than two functions.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    texts, functions = read_labelled(path)
    if len(set(functions)) < 2:
        raise BadInput(f"'{path}' has sentences of one function only; a labeller needs at least two")
    cues = cues_beside(path)
    features = make_union(
        TfidfVectorizer(analyzer=cues.runs, sublinear_tf=True, min_df=2),
        TfidfVectorizer(analyzer=cues.openings, min_df=2),
    )
    classifier: Any = make_pipeline(features, LogisticRegression(C=1.0, max_iter=3000))
    classifier.fit(texts, functions)

    names: list[str] = classifier.classes_.tolist()
    apart = [name in NON_EXECUTION for name in names]

    def label(sentences: Sequence[str]) -> list[str]:
        """First whether a sentence is execution, then which kind of either: the first question matters most."""
        if not sentences:
            return []
        chances = classifier.predict_proba(list(sentences))
        unlikely = np.array(apart) != (chances[:, apart].sum(axis=1, keepdims=True) > 0.5)
        return [names[best] for best in np.where(unlikely, -1.0, chances).argmax(axis=1)]

    return label


def read_labelled(path: Path) -> tuple[list[str], list[str]]:
    """Texts and functions of a JSONL file of labelled sentences.

    Raises:
        BadInput: the file is missing, empty, or has a broken line.
    """
    texts, functions = [], []
    for number, row in read_jsonl(path, "--labels"):
        if not isinstance(row.get("text"), str) or row.get("function") not in FUNCTIONS:
            raise BadInput(f"'{path}' line {number} needs a text and a function of {', '.join(FUNCTIONS)}")
        texts.append(row["text"])
        functions.append(row["function"])
    return texts, functions


def labeller(name: str = "classifier", labels: Path | None = None) -> Labeller:
    """The labeller of that name: "classifier" (fitted on `labels`, or on our own sentences) or "keywords".

    Raises:
        BadInput: there is no such labeller, or the labels are broken.
    """
    if name == "keywords":
        return by_keywords
    if name == "classifier":
        return fitted(labels or SENTENCES)
    raise BadInput(f"--label-with is '{name}'; it must be classifier or keywords")


def functions_of(sentences: Sequence[str], label: Labeller | None = None) -> list[str]:
    """The function of each sentence; by our own classifier where no labeller is given."""
    return (label or fitted())(list(sentences))


# -- sentences ---------------------------------------------------------------------------------------------------------

_PARAGRAPH = re.compile(r"\S[^\n]*")
_WHOLE = re.compile(  # what is never cut: code, displayed and inline formulas, boxes
    r"```.*?(?:```|\Z)|\\\[.*?\\\]|\$\$.*?\$\$|\\begin\{(\w+\*?)\}.*?\\end\{\1\}|\\\(.*?\\\)|\$[^$\n]+\$|\\boxed\{[^\n]*\}",
    re.DOTALL,
)
_LISTED = re.compile(r"\s*(\d+|[a-zA-Z])[.)]$")  # "1." and "b)" open a list item, they do not end a sentence
_TRAILING = re.compile(r"\.{3}$|\u2026$")  # an ellipsis, before a small letter, goes on
_MASK = "\u00b7"


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


def spans(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a chain of thought start and end; together they cover all that is not blank.

    Newlines end a sentence, except inside code and displayed formulas; within a line Punkt (Kiss and Strunk 2006) finds
    the ends of prose.
    """
    # What must not be cut is masked by as many letters, so that offsets stay.
    masked = _WHOLE.sub(lambda whole: _MASK * len(whole.group()), text)
    found = []
    for paragraph in _PARAGRAPH.finditer(masked):
        line, begin = paragraph.group().rstrip(), 0
        ends = [end for _, end in _PUNKT.span_tokenize(line)]
        for end in [*ends[:-1], len(line)]:
            piece, rest = line[begin:end].strip(), line[end:].lstrip()
            if rest and (_LISTED.match(piece) or (_TRAILING.search(piece) and rest[0].islower())):
                continue
            start = paragraph.start() + begin + len(line[begin:end]) - len(line[begin:end].lstrip())
            found.append((start, start + len(piece)))
            begin = end
    return found


def label_sentences(text: str, label: Labeller | None = None) -> list[Sentence]:
    """Cuts a chain of thought into sentences and labels them; together they cover all that is not blank."""
    places = spans(text)
    pieces = [text[start:end] for start, end in places]
    return [
        Sentence(piece, function, *place)
        for piece, function, place in zip(pieces, functions_of(pieces, label), places, strict=True)
    ]
