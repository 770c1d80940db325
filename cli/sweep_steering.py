"""skipkv sweep-steering: how hard to steer, and whether it is the direction that does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from skipkv.cli import options as o
from skipkv.errors import BadInput, require_at_least

DEFAULT_VECTORS = ["auto"]
DEFAULT_ALPHAS = [-0.25, -0.5, -1.0]
DEFAULT_GAMMAS = [0.02]


@o.grouped
def sweep_steering(
    context: typer.Context,
    *,
    model: o.ModelOptions,
    task: o.Task = "ledger-validation",
    limit: o.Limit = None,
    start: o.Start = 0,
    shuffle: o.Shuffle = False,
    seed: o.Seed = 0,
    vectors: Annotated[
        list[str], typer.Option(help="Vector files, one per layer; auto is the reasoner's own.")
    ] = DEFAULT_VECTORS,
    alphas: Annotated[list[float], typer.Option(help="Strengths before the first re-check.")] = DEFAULT_ALPHAS,
    gammas: Annotated[list[float], typer.Option(help="Added strengths per re-check.")] = DEFAULT_GAMMAS,
    max_shift: o.MaxShift = None,
    vector_layer: o.VectorLayer = None,
    method: Annotated[str, typer.Option(help=o.METHODS)] = "full",
    budget: Annotated[str, typer.Option(help="Slots per head, where the method has a budget.")] = "128",
    points_lost: Annotated[float, typer.Option(help="Accuracy that the best setting may lose, in points.")] = 1.0,
    decoding: o.DecodingOptions,
    policy: o.PolicyOptions,
    workers: o.RayOptions,
    save: Annotated[Path | None, typer.Option(help="Write the best vector with its strengths here.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for sweep.json and sweep.png.")] = Path("runs/sweep"),
) -> None:
    """Steer with every strength, and with a random vector of the same norm; find the setting that saves most."""
    from skipkv import policies
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import in_slots, parse
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.sweep import best, sweep
    from skipkv.evaluation.tasks import load as load_task

    require_at_least("number of --alphas", len(alphas), 1)
    slots = None if method == "full" else in_slots(parse(budget), None)
    chosen = policies.build(method, budget=slots, **vars(policy))
    problems = load_task(task, limit, start=start, shuffle=shuffle, seed=seed)
    settings = decoding.settings(task, seed)
    steering = [o.SteeringOptions(name, max_shift=max_shift, vector_layer=vector_layer) for name in vectors]
    for one in steering:
        one.check()
    chosen_later = ("vectors", "alphas", "gammas", "points_lost", "save")  # each setting has a folder of its own
    asked = o.asked(context, **dict.fromkeys(chosen_later))
    with workers.workforce(model) as (loaded, tokenizer, answerer), o.progress() as shown:
        learned = [one.vector(model.model, tokenizer) for one in steering]
        if None in learned:
            raise BadInput(f"--vectors is {' '.join(vectors)}, which gives no vector for this model; name a file")

        def started(title: str) -> Callable[[], None]:
            return o.bar(shown, title, decoding.samples * len(problems))

        def store_of(name: str) -> Store:
            return Store(out / name.replace(" ", "-"), asked)

        points = sweep(
            loaded,
            tokenizer,
            problems,
            chosen,
            settings,
            vectors=learned,
            alphas=alphas,
            gammas=gammas,
            samples=decoding.samples,
            answerer=answerer,
            store_of=store_of,
            started=started,
        )
    best_point = best(points, points_lost / 100)
    o.console.print(report.sweep_table(points, best_point))
    report.write_sweep(out, model.model, task, [point.as_dict() for point in points])
    if save and best_point.vector == "learned":
        source = next(vector for vector in learned if vector.layer == best_point.layer)
        source.with_strength(best_point.alpha0, best_point.gamma).save(save)
        o.console.print(f"best setting -> {save}")
    o.console.print(f"-> {out}/sweep.json, sweep.png")
