"""The ledger: arithmetic word problems over named quantities, and answers that reason the way R1 does.

A problem lists facts in shuffled order ("Pam: Cid plus 9"), some of them distractors, and asks for one quantity or
for two together. The answer walks back from the question (plan sentences), computes forwards (calc sentences),
re-checks itself at random (verify sentences) and concludes. Every datum stands right behind a token that is its own:
the other name behind " Pam:", the amount behind " Cid plus" (no problem says that twice), a value behind " Pam =". So
every step is a single look-up, which a model this small can learn in minutes.

Run as a script, it writes the problems that ship:

    python data/reasoner/training/ledger.py --split test --count 400 --out data/ledger/test.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAMES = ["Ann", "Ben", "Cid", "Dan", "Eva", "Gus", "Ida", "Joe", "Kim", "Leo", "Mia", "Ned", "Pam", "Ron", "Sue", "Tom"]
ITEMS = ["apples", "books", "coins", "cards", "eggs", "keys", "maps", "nuts", "pens", "shells", "stamps", "stones"]
AMOUNTS = {"plus": range(2, 10), "minus": range(2, 10), "times": range(2, 4)}
LARGEST_VALUE = 50

HELD_OUT = {"test": range(2), "validation": range(2, 4)}  # hash buckets of 100; all others are for training


@dataclass(frozen=True)
class Fact:
    """`name` holds `amount`, or what `other` holds plus, minus or times `amount`."""

    name: str
    amount: int
    relation: str = ""  # "plus", "minus", "times"; empty: a plain amount
    other: str = ""

    def text(self) -> str:
        return (
            f"{self.name}: {self.other} {self.relation} {self.amount}"
            if self.relation
            else f"{self.name}: {self.amount}"
        )

    def value(self, other: int) -> int:
        """What `name` holds when `other` holds that much (a plain amount needs no other)."""
        results = {
            "": self.amount,
            "plus": other + self.amount,
            "minus": other - self.amount,
            "times": other * self.amount,
        }
        return results[self.relation]

    def sum_text(self, other: int, swapped: bool = False) -> str:
        """The computation as text, such as "28 + 9 = 37"; `swapped` turns the operands of + and * round."""
        sign = {"plus": "+", "minus": "-", "times": "*"}[self.relation]
        left, right = (self.amount, other) if swapped and sign != "-" else (other, self.amount)
        return f"{left} {sign} {right} = {self.value(other)}"


@dataclass(frozen=True)
class Problem:
    chain: tuple[Fact, ...]  # from the quantity asked for back to the plain amount
    listed: tuple[Fact, ...]  # the chain and the distractors, as the problem lists them
    together: str  # the second quantity asked for, or ""
    item: str

    def question(self) -> str:
        target = self.chain[0].name
        asked = f"do {target} and {self.together} have together" if self.together else f"does {target} have"
        facts = "".join(f"- {fact.text()}.\n" for fact in self.listed)
        return f"{facts}How many {self.item} {asked}?"

    def values(self) -> dict[str, int]:
        values = {self.chain[-1].name: self.chain[-1].amount}
        for fact in reversed(self.chain[:-1]):
            values[fact.name] = fact.value(values[fact.other])
        return values

    def answer(self) -> int:
        values = self.values()
        return values[self.chain[0].name] + (values[self.together] if self.together else 0)

    def split(self) -> str:
        bucket = int(hashlib.sha256(self.question().encode()).hexdigest(), 16) % 100
        return next((name for name, buckets in HELD_OUT.items() if bucket in buckets), "train")


@dataclass(frozen=True)
class Temper:
    """How a writer re-checks: chance after a plan sentence, after a calculation, and once more after that."""

    plan: float
    first: float
    second: float


# A writer keeps its temper through the whole answer, so a re-check makes the next one likelier, as in large models.
# Over all of them the first re-check has probability 0.7: greedy decoding re-checks, and stops after one.
TEMPERS = ((0.5, Temper(0.80, 0.95, 0.40)), (0.3, Temper(0.60, 0.70, 0.25)), (0.2, Temper(0.10, 0.15, 0.00)))


def possible_facts(name: str, other: str, other_value: int) -> dict[str, list[Fact]]:
    """Facts about `name` in terms of `other`, by relation, whose value stays within 2 and LARGEST_VALUE."""
    facts = {
        relation: [Fact(name, amount, relation, other) for amount in amounts] for relation, amounts in AMOUNTS.items()
    }
    within = {
        relation: [fact for fact in drawn if 2 <= fact.value(other_value) <= LARGEST_VALUE]
        for relation, drawn in facts.items()
    }
    return {relation: drawn for relation, drawn in within.items() if drawn}


def random_problem(rng: random.Random, quantities: int) -> Problem:
    """A problem whose chain has `quantities` facts, with two to four distractors that hang on it or on each other."""
    names = rng.sample(NAMES, quantities + rng.randint(2, 4))
    facts: list[Fact] = []
    values: dict[str, int] = {}
    for index, name in enumerate(names):
        in_chain = index < quantities
        other = names[index - 1] if in_chain else rng.choice(names[:index])
        possible = possible_facts(name, other, values[other]) if index else {}
        for fact in facts:
            if fact.other == other:
                possible.pop(fact.relation, None)  # no pair of other name and relation comes twice
        if not possible or (not in_chain and rng.random() < 0.25):
            facts.append(Fact(name, rng.randint(3, 20)))
        else:
            facts.append(rng.choice(possible[rng.choice(list(possible))]))
        values[name] = facts[-1].value(values.get(other, 0))
    chain = tuple(reversed(facts[:quantities]))
    rng.shuffle(facts)
    together = rng.choice(names[: quantities - 1]) if quantities > 1 and rng.random() < 0.5 else ""
    return Problem(chain, tuple(facts), together, rng.choice(ITEMS))


def plan_check(rng: random.Random, fact: Fact) -> str:
    forms = [f"Wait, let me read {fact.text()} again.\n", f"Wait, it says {fact.text()}, yes.\n"]
    return rng.choices(forms, [0.8, 0.2])[0]


def calc_check(rng: random.Random, fact: Fact, other: int) -> str:
    """A re-check of one calculation; which form is likely depends on the relation, so greedy answers vary too."""
    value = f"{fact.name} = {fact.value(other)}"
    same, swapped = fact.sum_text(other), fact.sum_text(other, swapped=True)
    forms = [
        f"Wait, let me check that: {fact.text()}, {same}, so {value} again.\n",
        f"Alternatively, {fact.text()}, {swapped}, so {value} as before.\n",
        f"Hmm, let me check {fact.text()} again, {same}, so {value}.\n",
    ]
    likely = ["minus", "times", "plus"].index(fact.relation)
    return rng.choices(forms, [0.84 if i == likely else 0.08 for i in range(3)])[0]


def checks_of_calc(rng: random.Random, temper: Temper, fact: Fact, other: int) -> Iterator[str]:
    if rng.random() < temper.first:
        yield calc_check(rng, fact, other)
        if rng.random() < temper.second:
            yield calc_check(rng, fact, other)


def sentences(rng: random.Random, problem: Problem) -> Iterator[str]:
    """The chain of thought, sentence by sentence, each with its newline delimiter."""
    temper = rng.choices([temper for _, temper in TEMPERS], [share for share, _ in TEMPERS])[0]
    values, base, target = problem.values(), problem.chain[-1], problem.chain[0]
    for fact in problem.chain[:-1]:
        yield f"Look up {fact.text()}, so {fact.other} gives {fact.name}.\n"
        if rng.random() < temper.plan:
            yield plan_check(rng, fact)
    yield f"Look up {base.text()}, so {base.name} = {base.amount}.\n"
    for fact in reversed(problem.chain[:-1]):
        other = values[fact.other]
        yield f"Now {fact.other} gives {fact.text()}, {fact.sum_text(other)}, so {fact.name} = {fact.value(other)}.\n"
        yield from checks_of_calc(rng, temper, fact, other)
    if problem.together:
        total = f"{values[target.name]} + {values[problem.together]} = {problem.answer()}"
        parts = f"{target.name} = {values[target.name]} and {problem.together} = {values[problem.together]}"
        yield f"Together {parts}, {total}.\n"
        if rng.random() < temper.first:
            yield f"Wait, let me add again, {parts}, {total}.\n"
    yield f"So the answer is {problem.answer()}.\n"


def response(rng: random.Random, problem: Problem) -> str:
    """What the model writes behind "<think>\\n"."""
    return "".join(sentences(rng, problem)) + f"</think>\n\n\\boxed{{{problem.answer()}}}"


def drill(rng: random.Random, problem: Problem) -> tuple[str, str]:
    """Question and response of a look-up drill: every fact of a problem, said once more in another order.

    In whole answers most sentences repeat a recent one, and copying from nearby is learned in place of looking a fact
    up in the question by its name; drills teach the look-up itself.
    """
    facts = rng.choices(problem.listed, k=2 * len(problem.listed))
    said = (f"so {f.other} gives {f.name}" if f.relation else f"so {f.name} = {f.amount}" for f in facts)
    text = "".join(f"Look up {fact.text()}, {rest}.\n" for fact, rest in zip(facts, said, strict=True))
    listing = problem.question().rsplit("\n", 1)[0]
    return f"{listing}\nWhat do you know?", f"{text}</think>"


def sums(rng: random.Random) -> tuple[str, str]:
    """Question and response of an arithmetic drill: a dozen computations of the kinds that answers hold."""
    said = []
    for _ in range(12):
        value = rng.randint(2, LARGEST_VALUE)
        if rng.random() < 0.5:
            other = rng.randint(2, LARGEST_VALUE)
            said.append(f"{value} + {other} = {value + other}")
        else:
            possible = possible_facts("", "", value)
            said.append(rng.choice(possible[rng.choice(list(possible))]).sum_text(value, swapped=rng.random() < 0.3))
    asked = "".join(f"- {one.split(' =')[0]}.\n" for one in said)
    return f"{asked}What do you add?", "".join(f"Now {one}.\n" for one in said) + "</think>"


def problems(seed: int, split: str, quantities: range) -> Iterator[tuple[Problem, random.Random]]:
    """Endless problems of one split, each with the generator to draw its response from; no problem comes twice."""
    rng, seen = random.Random(f"{split}-{seed}"), set()
    while True:
        problem = random_problem(rng, rng.choice(quantities))
        if problem.split() == split and (question := problem.question()) not in seen:
            seen.add(question)
            yield problem, rng


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=["train", "validation", "test"], default="test")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=int, default=3, help="quantities on the shortest chain")
    parser.add_argument("--most", type=int, default=6, help="quantities on the longest chain")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    drawn = problems(options.seed, options.split, range(options.least, options.most + 1))
    rows = [
        {"question": problem.question(), "answer": str(problem.answer()), "quantities": len(problem.chain)}
        for (problem, _), _ in zip(drawn, range(options.count), strict=False)
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} {options.split} problems -> {options.out}")


if __name__ == "__main__":
    main()
