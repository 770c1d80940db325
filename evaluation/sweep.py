"""Does steering pay? Strengths and layers against no steering and against a random vector of the same norm."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from skipkv.decoding import Settings
from skipkv.evaluation.runner import Answerer, Row, run, summarise
from skipkv.evaluation.store import Answer, Store
from skipkv.evaluation.tasks import Problem
from skipkv.policies import Policy
from skipkv.steering.vectors import SteeringVector


@dataclass(frozen=True)
class Point:
    """One setting and what came of it; `vector` is "none", "learned" or "random"."""

    vector: str
    layer: int | None
    alpha0: float
    gamma: float
    row: Row

    def as_dict(self) -> dict[str, Any]:
        """Flat, for a file."""
        told = asdict(self)
        return told | told.pop("row")


def random_like(vector: SteeringVector, seed: int) -> SteeringVector:
    """A random direction of the same norm, layer and strengths."""
    drawn = torch.randn(vector.vector.shape, generator=torch.Generator().manual_seed(seed))
    return replace(vector, vector=drawn * vector.vector.norm() / drawn.norm(), notes={}, others={})


def digest(vector: SteeringVector) -> str:
    """Six digits that tell vectors apart."""
    return hashlib.sha256(vector.vector.float().numpy().tobytes()).hexdigest()[:6]


def settings_of(
    vectors: Sequence[SteeringVector], alphas: Sequence[float], gammas: Sequence[float], seed: int
) -> Iterator[tuple[str, SteeringVector]]:
    """Every vector at every strength, each followed by a random one of the same norm."""
    for vector in vectors:
        for alpha0 in alphas:
            for gamma in gammas:
                learned = vector.with_strength(alpha0, gamma)
                yield "learned", learned
                yield "random", random_like(learned, seed)


def sweep(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    policy: Policy,
    settings: Settings,
    *,
    vectors: Sequence[SteeringVector],
    alphas: Sequence[float],
    gammas: Sequence[float],
    samples: int = 1,
    answerer: Answerer | None = None,
    store_of: Callable[[str], Store] = lambda name: Store(),
    started: Callable[[str], Callable[[], None]],
) -> list[Point]:
    """Runs the problems unsteered, then with every vector and strength.

    Args:
        samples: answers to each problem.
        answerer: answers the prompts in place of `model`: a pool of workers.
        store_of: the store of a setting's answers, by the setting's name.
        started: called with a run's title; returns what to call after each of its answers.
    """

    def answers_with(name: str, vector: SteeringVector | None) -> list[Answer]:
        return run(
            model,
            tokenizer,
            problems,
            policy,
            settings,
            samples=samples,
            steering=vector,
            store=store_of(name),
            answerer=answerer,
            finished=started(name),
        )

    plain = answers_with("no steering", None)
    points = [Point("none", None, 0.0, 0.0, summarise(plain))]
    for kind, vector in settings_of(vectors, alphas, gammas, settings.seed):
        name = f"{kind} {digest(vector)} layer {vector.layer} alpha0 {vector.alpha0:g} gamma {vector.gamma:g}"
        row = summarise(answers_with(name, vector), plain)
        points.append(Point(kind, vector.layer, vector.alpha0, vector.gamma, row))
    return points


def best(points: Sequence[Point], points_lost: float) -> Point:
    """The learned vector's setting with the fewest tokens whose accuracy is at most `points_lost` below no steering."""
    plain = points[0].row
    allowed = [
        point for point in points if point.vector != "random" and point.row.accuracy >= plain.accuracy - points_lost
    ]
    return min(allowed, key=lambda point: point.row.mean_new_tokens)
