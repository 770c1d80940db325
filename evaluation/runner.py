"""Runs one method on the problems of a task and measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skipkv.decoding import Settings
from skipkv.evaluation.grading import grade
from skipkv.evaluation.metrics import wilson
from skipkv.evaluation.tasks import Problem, prompt_for
from skipkv.patches.engine import generate
from skipkv.policies import Policy
from skipkv.steering.functions import NON_EXECUTION, label_sentences, thinking_of
from skipkv.steering.vectors import SteeringVector


@dataclass(frozen=True)
class Answer:
    """One graded answer; `truncated` answers ran into max_new_tokens and count as wrong."""

    method: str
    budget: int | None
    steered: bool
    index: int
    prompt: str
    text: str
    gold: str
    correct: bool
    truncated: bool
    prompt_tokens: int
    new_tokens: int
    nonexec: int


@dataclass(frozen=True)
class Row:
    """What one method did: one line of the table.

    Attributes:
        budget: slots per head; None for the full cache.
        budget_share: budget over FullKV's mean final length; None where that is not known.
        accuracy, accuracy_ci: share of right answers with its 95 % interval.
        nonexec_per_answer: non-execution sentences.
        tokens_per_second: new tokens of all rows over wall time, prefill included.
        peak_kv_bytes: keys and values held by the batch at most.
    """

    method: str
    budget: int | None
    budget_share: float | None
    n: int
    accuracy: float
    accuracy_ci: tuple[float, float]
    mean_new_tokens: float
    nonexec_per_answer: float
    tokens_per_second: float
    peak_kv_bytes: int
    steered: bool
    truncated: int


def run(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    policy: Policy,
    settings: Settings,
    *,
    steering: SteeringVector | None = None,
    full_length: float | None = None,
    finished: Callable[[], None] = lambda: None,
) -> tuple[Row, list[Answer]]:
    """Answers and grades all problems under one policy.

    Args:
        full_length: FullKV's mean final length in tokens, for `budget_share`.
        finished: called after each answer.
    """
    prompts = [prompt_for(problem, tokenizer) for problem in problems]
    reports: list[dict[str, Any]] = []
    answers = []
    results = generate(
        model, prompts, policy=policy, tokenizer=tokenizer, steering=steering, reports=reports, **asdict(settings)
    )
    started = time.perf_counter()
    for result in results:
        problem, prompt = problems[result.index], prompts[result.index]
        truncated = result.finish_reason == "length"
        sentences = label_sentences(thinking_of(result.text))
        answers.append(
            Answer(
                method=policy.name,
                budget=policy.budget,
                steered=steering is not None,
                index=result.index,
                prompt=prompt,
                text=result.text,
                gold=problem.answer,
                correct=not truncated and grade(result.text, problem.answer),
                truncated=truncated,
                prompt_tokens=result.prompt_tokens,
                new_tokens=len(result.tokens),
                nonexec=sum(sentence.function in NON_EXECUTION for sentence in sentences),
            )
        )
        finished()
    seconds = time.perf_counter() - started
    answers.sort(key=lambda answer: answer.index)
    return summarise(answers, seconds, reports[0]["peak_kv_bytes"], full_length), answers


def summarise(answers: Sequence[Answer], seconds: float, peak_kv_bytes: int, full_length: float | None) -> Row:
    """The table line of one method's answers (at least one)."""
    count, first = len(answers), answers[0]
    right = sum(answer.correct for answer in answers)
    written = sum(answer.new_tokens for answer in answers)
    return Row(
        method=first.method,
        budget=first.budget,
        budget_share=None if first.budget is None or full_length is None else first.budget / full_length,
        n=count,
        accuracy=right / count,
        accuracy_ci=wilson(right, count),
        mean_new_tokens=written / count,
        nonexec_per_answer=sum(answer.nonexec for answer in answers) / count,
        tokens_per_second=written / seconds,
        peak_kv_bytes=peak_kv_bytes,
        steered=first.steered,
        truncated=sum(answer.truncated for answer in answers),
    )


def mean_length(answers: Sequence[Answer]) -> float:
    """Mean final length in tokens, prompt included: what a fractional budget is a fraction of."""
    return sum(answer.prompt_tokens + answer.new_tokens for answer in answers) / len(answers)
