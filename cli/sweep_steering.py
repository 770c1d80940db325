"""skipkv sweep-steering: how hard to steer, and whether it is the direction that does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from skipkv.cli import options as o
from skipkv.errors import BadInput, require_at_least

DEFAULT_VECTORS = ["auto"]
DEFAULT_ALPHAS = [-0.25, -0.5, -1.0]
DEFAULT_GAMMAS = [0.02]


def sweep_steering(
    model: o.Model = "reasoner",
    task: o.Task = "ledger-validation",
    vectors: Annotated[
        list[str], typer.Option(help="Vector files, one per layer; auto is the reasoner's own.")
    ] = DEFAULT_VECTORS,
    alphas: Annotated[list[float], typer.Option(help="Strengths before the first re-check.")] = DEFAULT_ALPHAS,
    gammas: Annotated[list[float], typer.Option(help="Added strengths per re-check.")] = DEFAULT_GAMMAS,
    method: Annotated[str, typer.Option(help="full, streamingllm, h2o, snapkv, rkv or skipkv.")] = "full",
    budget: Annotated[str, typer.Option(help="Slots per head, where the method has a budget.")] = "128",
    points_lost: Annotated[float, typer.Option(help="Accuracy that the best setting may lose, in points.")] = 1.0,
    max_shift: o.MaxShift = None,
    vector_layer: o.VectorLayer = None,
    save: Annotated[Path | None, typer.Option(help="Write the best vector with its strengths here.")] = None,
    limit: o.Limit = None,
    batch_size: o.BatchSize = 10,
    max_new_tokens: o.MaxNewTokens = None,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float32",
    out: Annotated[Path, typer.Option(help="Folder for sweep.json and sweep.png.")] = Path("runs/sweep"),
    trust_remote_code: o.Trust = False,
) -> None:
    """Steer with every strength, and with a random vector of the same norm; find the setting that saves most."""
    from skipkv import policies
    from skipkv.decoding import Settings
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import in_slots, parse
    from skipkv.evaluation.models import load
    from skipkv.evaluation.sweep import best, sweep
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.evaluation.tasks import max_new_tokens as longest_answer

    require_at_least("number of --alphas", len(alphas), 1)
    policy = policies.build(method, budget=None if method == "full" else in_slots(parse(budget), None))
    problems = load_task(task, limit)
    for given in vectors:
        o.check_vectors(given, "tokens")
    settings = Settings(
        batch_size=batch_size,
        max_new_tokens=longest_answer(task, max_new_tokens),
        seed=seed,
    )
    loaded, tokenizer = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    learned = [
        o.steering_vector(given, model, tokenizer, vector_layer, "tokens", max_shift=max_shift) for given in vectors
    ]
    if None in learned:
        raise BadInput(f"--vectors is {' '.join(vectors)}, which gives no vector for this model; name a file")
    with o.progress() as shown:

        def started(title: str) -> Callable[[], None]:
            return o.bar(shown, title, len(problems))

        points = sweep(
            loaded,
            tokenizer,
            problems,
            policy,
            settings,
            vectors=learned,
            alphas=alphas,
            gammas=gammas,
            started=started,
        )
    chosen, plain = best(points, points_lost / 100), points[0].row
    table = Table(
        "vector", "layer", "alpha0", "gamma", "accuracy", "tokens", "to none", "non-exec", "cut off", box=None
    )
    for point in points:
        row = point.row
        table.add_row(
            point.vector,
            "" if point.layer is None else str(point.layer),
            f"{point.alpha0:g}",
            f"{point.gamma:g}",
            f"{row.accuracy:.3f}",
            f"{row.mean_new_tokens:.1f}",
            f"{row.mean_new_tokens / plain.mean_new_tokens - 1:+.0%}",
            f"{row.nonexec_per_answer:.2f}",
            str(row.truncated),
            style="bold" if point is chosen else "",
        )
    o.console.print(table)
    report.write_sweep(out, model, task, [point.as_dict() for point in points])
    if save and chosen.vector == "learned":
        source = next(vector for vector in learned if vector.layer == chosen.layer)
        source.with_strength(chosen.alpha0, chosen.gamma).save(save)
        o.console.print(f"best setting -> {save}")
    o.console.print(f"-> {out}/sweep.json, sweep.png")
