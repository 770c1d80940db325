"""skipkv patch-and-eval: one method, one budget, graded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipkv.cli import options as o


@o.grouped
def patch_and_eval(
    context: typer.Context,
    *,
    model: o.ModelOptions,
    task: o.Task = "ledger",
    limit: o.Limit = None,
    start: o.Start = 0,
    shuffle: o.Shuffle = False,
    seed: o.Seed = 0,
    method: Annotated[str, typer.Option(help=o.METHODS)] = "skipkv",
    budget: Annotated[str, typer.Option(help="Slots per head, or a fraction of FullKV's mean final length.")] = "128",
    full_length: Annotated[float | None, typer.Option(help="FullKV's mean final length, for a fraction.")] = None,
    full_results: Annotated[Path | None, typer.Option(help="results.json of a compare run, instead.")] = None,
    decoding: o.DecodingOptions,
    steering: o.SteeringOptions,
    policy: o.PolicyOptions,
    workers: o.RayOptions,
    out: Annotated[Path, typer.Option(help="Folder for results.json and answers.jsonl.")] = Path("runs/patch-and-eval"),
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first prompt and stop.")] = False,
) -> None:
    """Patch a model's attention, steer it, and grade its answers."""
    from skipkv import policies
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import in_slots, length_from, parse
    from skipkv.evaluation.models import load_tokenizer
    from skipkv.evaluation.runner import mean_length, run, summarise
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.evaluation.tasks import prompt_for

    length = length_from(full_results) if full_results else full_length
    slots = None if method == "full" else in_slots(parse(budget), length)
    chosen = policies.build(method, budget=slots, **vars(policy))
    problems = load_task(task, limit, start=start, shuffle=shuffle, seed=seed)
    settings = decoding.settings(task, seed)
    if show_prompt:
        typer.echo(prompt_for(problems[0], load_tokenizer(model.model, model.trust_remote_code)))
        return
    steering.check()
    store = Store(out, o.asked(context))
    with workers.workforce(model) as (loaded, tokenizer, answerer), o.progress() as shown:
        answers = run(
            loaded,
            tokenizer,
            problems,
            chosen,
            settings,
            samples=decoding.samples,
            steering=steering.vector(model.model, tokenizer),
            store=store,
            answerer=answerer,
            finished=o.bar(shown, method, decoding.samples * len(problems)),
        )
    row = summarise(answers, full_length=length)
    o.console.print(report.table([row]))
    report.write(out, model.model, task, [row], mean_length(answers) if method == "full" else length)
    o.console.print(f"-> {out}/results.json, answers.jsonl")
