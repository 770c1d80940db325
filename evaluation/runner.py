"""Runs one method on the problems of a task and measures it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from skipkv.decoding import Result, Settings
from skipkv.evaluation.metrics import bootstrap, mcnemar, pass_at_k, share_interval
from skipkv.evaluation.store import Answer, Store
from skipkv.evaluation.tasks import Problem, prompt_for
from skipkv.patches.engine import generate
from skipkv.policies import Policy
from skipkv.steering.functions import NON_EXECUTION, label_sentences
from skipkv.steering.vectors import SteeringVector
from skipkv.thinking import answer_of, thinking_of

log = logging.getLogger(__name__)


Answerer = Callable[[dict[int, str], Policy, Settings, SteeringVector | None], Iterator[Result]]


@dataclass(frozen=True)
class Difference:
    """Accuracy less that of another run on the same problems.

    Attributes:
        interval: 95 %, by bootstrap over problems.
        p_value: McNemar's, for one sample of each problem; None where there are more.
    """

    accuracy: float
    interval: tuple[float, float]
    p_value: float | None

    @property
    def is_real(self) -> bool:
        """Whether chance alone would hardly make it (5 %)."""
        return self.p_value < 0.05 if self.p_value is not None else not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True)
class Row:
    """What one method did: one line of the table.

    Attributes:
        budget: slots per head; None for the full cache.
        budget_share: budget over FullKV's mean final length; None where that is not known.
        n: problems; each was answered `samples` times.
        accuracy, accuracy_ci: pass@1, the share of right answers, with its 95 % interval.
        pass_at: pass@k by k, for k of 2, 4, 8, … up to the samples.
        to_full: the difference to FullKV; None where there is nothing to compare with.
        to_baselines: of our method, the difference to each baseline at the same budget.
        nonexec_per_answer: non-execution sentences.
        tokens_per_second: new tokens of all rows over wall time, prefill included.
        peak_kv_bytes: keys and values held by the batch at most.
        truncated: answers that ran into max_new_tokens, which count as wrong.
    """

    method: str
    budget: int | None
    budget_share: float | None
    n: int
    samples: int
    accuracy: float
    accuracy_ci: tuple[float, float]
    pass_at: dict[int, float]
    to_full: Difference | None
    to_baselines: dict[str, Difference]
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
    samples: int = 1,
    steering: SteeringVector | None = None,
    store: Store | None = None,
    answerer: Answerer | None = None,
    finished: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Answers and grades all problems under one policy; what the store holds already is not done again.

    Args:
        samples: answers to each problem, drawn with different randomness.
        store: keeps the answers.
        answerer: answers the prompts in place of `model`: a pool of workers.
        finished: called after each answer, those of the store included.

    Returns:
        The answers, by problem and sample.
    """
    store = store or Store()
    prompts = [prompt_for(problem, tokenizer) for problem in problems]
    identity = (policy.name, policy.budget, steering is not None)
    done = {(answer.index, answer.sample) for answer in store.of(identity)}
    for _ in done:
        finished()
    # Request number index * samples + sample draws its own randomness, whenever and beside whomever it runs.
    waiting = {
        index * samples + sample: prompts[index]
        for index, sample in product(range(len(problems)), range(samples))
        if (index, sample) not in done
    }
    if answerer:
        results = answerer(waiting, policy, settings, steering)
    else:
        results = answers_of(model, tokenizer, waiting, policy, settings, steering)
    before = time.perf_counter()
    for result in results:
        problem, now = problems[result.index // samples], time.perf_counter()
        truncated = result.finish_reason == "length"
        sentences = label_sentences(thinking_of(result.text))
        store.add(
            Answer(
                method=policy.name,
                budget=policy.budget,
                steered=steering is not None,
                index=result.index // samples,
                sample=result.index % samples,
                prompt=prompts[result.index // samples],
                text=result.text,
                answer=answer_of(result.text).strip(),
                gold=problem.answer,
                correct=not truncated and problem.is_right(result.text),
                truncated=truncated,
                prompt_tokens=result.prompt_tokens,
                new_tokens=len(result.tokens),
                nonexec=sum(sentence.function in NON_EXECUTION for sentence in sentences),
                seconds=now - before,
                peak_kv_bytes=result.peak_kv_bytes,
            )
        )
        finished()
        before = time.perf_counter()  # grading is not the method's time
    return store.of(identity)


def answers_of(
    model: Any,
    tokenizer: Any,
    waiting: dict[int, str],
    policy: Policy,
    settings: Settings,
    steering: SteeringVector | None,
) -> Iterator[Result]:
    """Answers the prompts by request number; where memory runs out the batch is halved and the rest goes on."""
    waiting = dict(waiting)
    while waiting:
        requests = list(waiting)
        try:
            for result in generate(
                model,
                list(waiting.values()),
                policy=policy,
                tokenizer=tokenizer,
                steering=steering,
                requests=requests,
                **asdict(settings),
            ):
                del waiting[result.index]
                yield result
        except (torch.OutOfMemoryError, MemoryError):
            if settings.batch_size == 1:
                raise
            settings = replace(settings, batch_size=settings.batch_size // 2)
            log.warning("out of memory: the batch is halved to %d from here on", settings.batch_size)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def right_per_problem(answers: Sequence[Answer]) -> dict[int, int]:
    """Right samples of each problem."""
    right = dict.fromkeys((answer.index for answer in answers), 0)
    for answer in answers:
        right[answer.index] += answer.correct
    return right


def difference(answers: Sequence[Answer], others: Sequence[Answer], samples: int) -> Difference:
    """How much more often `answers` are right than `others`, problem by problem."""
    right, before = right_per_problem(answers), right_per_problem(others)
    gains = [(right[index] - before[index]) / samples for index in right]
    paired = mcnemar([answer.correct for answer in answers], [answer.correct for answer in others])
    return Difference(sum(gains) / len(gains), bootstrap(gains), paired if samples == 1 else None)


def summarise(
    answers: Sequence[Answer],
    full: Sequence[Answer] = (),
    full_length: float | None = None,
    baselines: Mapping[str, Sequence[Answer]] | None = None,
) -> Row:
    """The table line of one method's answers (at least one).

    Args:
        full: FullKV's answers to the same problems; empty where there are none.
        full_length: FullKV's mean final length in tokens.
        baselines: answers of other methods to the same problems, by name.
    """
    count, first = len(answers), answers[0]
    right = right_per_problem(answers)
    samples = count // len(right)
    written = sum(answer.new_tokens for answer in answers)
    paired = bool(full) and (first.method != "full" or first.steered)
    return Row(
        method=first.method,
        budget=first.budget,
        budget_share=None if first.budget is None or full_length is None else first.budget / full_length,
        n=len(right),
        samples=samples,
        accuracy=sum(right.values()) / count,
        accuracy_ci=share_interval(list(right.values()), samples),
        pass_at={k: pass_at_k(list(right.values()), samples, k) for k in (2, 4, 8, 16, 32, 64) if k <= samples},
        to_full=difference(answers, full, samples) if paired else None,
        to_baselines={name: difference(answers, others, samples) for name, others in (baselines or {}).items()},
        mean_new_tokens=written / count,
        nonexec_per_answer=sum(answer.nonexec for answer in answers) / count,
        tokens_per_second=written / sum(answer.seconds for answer in answers),
        peak_kv_bytes=max(answer.peak_kv_bytes for answer in answers),
        steered=first.steered,
        truncated=sum(answer.truncated for answer in answers),
    )


def mean_length(answers: Sequence[Answer]) -> float:
    """Mean final length in tokens, prompt included: what a fractional budget is a fraction of."""
    return sum(answer.prompt_tokens + answer.new_tokens for answer in answers) / len(answers)
