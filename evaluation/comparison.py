"""The same problems under several methods and budgets, FullKV first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from skipkv import policies
from skipkv.decoding import Settings
from skipkv.evaluation.budgets import in_slots
from skipkv.evaluation.runner import Answerer, Row, mean_length, run, summarise
from skipkv.evaluation.store import Answer, Store
from skipkv.evaluation.tasks import Problem
from skipkv.steering.vectors import SteeringVector

FULL, OURS = policies.FullKV.name, policies.SkipKV.name
LARGE = 1 << 20  # a budget that stands for one not known yet


@dataclass(frozen=True)
class Comparison:
    """All rows, and FullKV's mean final length in tokens."""

    rows: list[Row]
    full_length: float


@dataclass(frozen=True)
class Job:
    """One comparison of several: a task under one seed, and the folder within the run's that holds its answers."""

    folder: str
    task: str
    problems: Sequence[Problem]
    settings: Settings
    store: Store


def methods_of(baselines: Sequence[str]) -> list[str]:
    """The methods that run besides FullKV, ours last, each once.

    Raises:
        BadInput: a baseline is unknown.
    """
    for name in baselines:
        policies.require_known(name)
    return [name for name in dict.fromkeys(baselines) if name not in (FULL, OURS)] + [OURS]


def check(baselines: Sequence[str], budgets: Sequence[int | float], options: dict[str, Any]) -> None:
    """Checks what can be checked before FullKV has run: fractions become slots only then.

    Raises:
        BadInput: a baseline is unknown, or a budget in slots or a policy option cannot work.
    """
    for budget in budgets:
        for name in methods_of(baselines):
            policies.build(name, budget=budget if isinstance(budget, int) else LARGE, **options)


def runs_of(methods: Sequence[str], steering: SteeringVector | None) -> list[tuple[str, SteeringVector | None]]:
    """Each method once without steering, and ours a second time with it where there is a vector."""
    return [(name, None) for name in methods] + ([(OURS, steering)] if steering else [])


def compare(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    *,
    baselines: Sequence[str],
    budgets: Sequence[int | float],
    settings: Settings,
    steering: SteeringVector | None,
    options: dict[str, Any],
    samples: int = 1,
    store: Store | None = None,
    answerer: Answerer | None = None,
    started: Callable[[str], Callable[[], None]] = lambda title: lambda: None,
) -> Comparison:
    """Runs FullKV, then every method at every budget.

    Args:
        options: policy options, given to every policy that has them.
        samples: answers to each problem.
        store: keeps the answers; those that it holds already are not written again.
        answerer: answers the prompts in place of `model`: a pool of workers.
        started: called with a run's title; returns what to call after each of its answers.

    Raises:
        BadInput: a method is unknown or a budget cannot work; budgets in slots are checked before anything runs.
    """
    check(baselines, budgets, options)
    runs = runs_of(methods_of(baselines), steering)
    store = store or Store()

    def answers_under(policy: policies.Policy, vector: SteeringVector | None) -> list[Answer]:
        title = " ".join(filter(None, (policy.name, str(policy.budget or ""), "steered" if vector else "")))
        return run(
            model,
            tokenizer,
            problems,
            policy,
            settings,
            samples=samples,
            steering=vector,
            store=store,
            answerer=answerer,
            finished=started(title),
        )

    full = answers_under(policies.build(FULL), None)
    length = mean_length(full)
    rows = [summarise(full)]
    chosen = [
        policies.build(name, budget=in_slots(budget, length), **options) for budget in budgets for name, _ in runs
    ]
    beside: dict[int | None, dict[str, list[Answer]]] = defaultdict(dict)  # of the baselines, by budget
    for policy, (name, vector) in zip(chosen, runs * len(budgets), strict=True):
        answers = answers_under(policy, vector)
        if name == OURS:
            rows.append(summarise(answers, full, length, beside[policy.budget]))
        else:
            beside[policy.budget][name] = answers
            rows.append(summarise(answers, full, length))
    return Comparison(rows, length)


def compare_all(jobs: Sequence[Job], compare_one: Callable[[Job], Comparison], *, at_once: bool) -> list[Comparison]:
    """Every job's comparison; with `at_once` beside each other, so that a pool of workers never waits for the last."""
    if not at_once:
        return [compare_one(job) for job in jobs]
    threads = ThreadPoolExecutor(len(jobs))
    try:
        return list(threads.map(compare_one, jobs))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
