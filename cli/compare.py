"""skipkv compare: several methods and budgets, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skipkv.cli import options as o
from skipkv.errors import BadInput

DEFAULT_BASELINES = ["h2o", "rkv"]
DEFAULT_BUDGETS = ["0.15", "0.25", "0.5"]
DEFAULT_TASKS = ["ledger"]
DEFAULT_SEEDS = [0]


@o.grouped
def compare(
    context: typer.Context,
    *,
    baselines: Annotated[
        list[str], typer.Option(help=f"Methods beside full and skipkv: --baselines h2o rkv. Known: {o.METHODS}")
    ] = DEFAULT_BASELINES,
    budgets: Annotated[
        list[str], typer.Option(help="Slots, or fractions of FullKV's mean final length.")
    ] = DEFAULT_BUDGETS,
    model: o.ModelOptions,
    task: Annotated[list[str], typer.Option(help=f"One or several of {o.TASKS}")] = DEFAULT_TASKS,
    limit: Annotated[int, typer.Option(help="Only the first N problems.")] = 50,
    start: o.Start = 0,
    shuffle: o.Shuffle = False,
    seed: Annotated[list[int], typer.Option(help="One or several, for sampling and shuffling.")] = DEFAULT_SEEDS,
    decoding: o.DecodingOptions,
    steering: o.SteeringOptions,
    policy: o.PolicyOptions,
    workers: o.RayOptions,
    out: Annotated[Path, typer.Option(help="Folder for results, answers and pictures.")] = Path("runs/compare"),
) -> None:
    """Run the same problems under FullKV, the baselines and SkipKV, at every budget.

    FullKV runs first: a fractional budget is a fraction of its mean final length.

    Several tasks or seeds get a folder each within --out; with --ray they run at the same time.
    """
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import parse
    from skipkv.evaluation.comparison import Comparison, Job, check, compare_all
    from skipkv.evaluation.comparison import compare as compare_methods
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.tasks import load as load_task

    chosen, options = [parse(budget) for budget in budgets], vars(policy)
    check(baselines, chosen, options)
    steering.check()
    tasks, seeds = list(dict.fromkeys(task)), list(dict.fromkeys(seed))
    alone = len(tasks) == len(seeds) == 1
    jobs = [
        Job(
            folder=(folder := "" if alone else f"{Path(name).stem}-seed-{drawn}"),
            task=name,
            problems=load_task(name, limit, start=start, shuffle=shuffle, seed=drawn),
            settings=decoding.settings(name, drawn),
            store=Store(out / folder, o.asked(context, task=name, seed=drawn)),
        )
        for name in tasks
        for drawn in seeds
    ]
    if len({job.folder for job in jobs}) < len(jobs):
        raise BadInput(f"--task is {' '.join(task)}, where two files have one name; rename one, or run them apart")
    with workers.workforce(model) as (loaded, tokenizer, answerer), o.progress() as shown:
        vector = steering.vector(model.model, tokenizer)

        def started(job: Job, title: str) -> Callable[[], None]:
            return o.bar(shown, f"{job.folder} {title}".strip(), decoding.samples * len(job.problems))

        def compare_one(job: Job) -> Comparison:
            return compare_methods(
                loaded,
                tokenizer,
                job.problems,
                baselines=baselines,
                budgets=chosen,
                settings=job.settings,
                steering=vector,
                options=options,
                samples=decoding.samples,
                store=job.store,
                answerer=answerer,
                started=partial(started, job),
            )

        results = compare_all(jobs, compare_one, at_once=answerer is not None)
    for job, result in zip(jobs, results, strict=True):
        o.console.print(report.table(result.rows, job.folder))
        o.console.print(f"FullKV's mean final length: {result.full_length:.1f} tokens; {len(job.problems)} problems")
        o.console.print(report.over_baselines(result.rows), highlight=False)
        report.write(out / job.folder, model.model, job.task, result.rows, result.full_length)
        report.draw(out / job.folder, result.rows)
    o.console.print("to: accuracy less the other's on the same problems; * is real (p < 0.05)")
    if len(seeds) > 1:
        for name in tasks:
            some = [result.rows for job, result in zip(jobs, results, strict=True) if job.task == name]
            o.console.print(report.over_seeds(some, f"{Path(name).stem}, mean and deviation over {len(some)} seeds"))
    o.console.print(f"-> {out}/{'' if alone else '*/'}results.json, answers.jsonl, accuracy.png, length.png")
