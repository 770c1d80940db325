"""skipkv compare: several methods and budgets, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from skipkv.cli import options as o

DEFAULT_BASELINES = ["h2o", "rkv"]
DEFAULT_BUDGETS = ["0.15", "0.25", "0.5"]


def compare(
    context: typer.Context,
    baselines: Annotated[
        list[str], typer.Option(help="Methods beside full and skipkv: --baselines h2o rkv.")
    ] = DEFAULT_BASELINES,
    budgets: Annotated[
        list[str], typer.Option(help="Slots, or fractions of FullKV's mean final length.")
    ] = DEFAULT_BUDGETS,
    model: o.Model = "reasoner",
    task: o.Task = "ledger",
    vectors: o.Vectors = "auto",
    alpha0: o.Alpha0 = None,
    gamma: o.Gamma = None,
    max_shift: o.MaxShift = None,
    count_with: o.CountWith = "tokens",
    vector_layer: o.VectorLayer = None,
    batch_size: o.BatchSize = 10,
    schedule: o.Schedule = "continuous",
    limit: Annotated[int, typer.Option(help="Only the first N problems.")] = 50,
    start: o.Start = 0,
    shuffle: o.Shuffle = False,
    max_new_tokens: o.MaxNewTokens = None,
    interval: o.Interval = None,
    prefill_chunk: o.PrefillChunk = None,
    compiled: o.Compile = False,
    window: o.Window = 8,
    tau: o.Tau = 0.95,
    lam: o.Lam = 0.1,
    samples: o.Samples = 1,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float32",
    device_map: o.DeviceMap = None,
    ray: o.Ray = None,
    ray_workers: o.RayWorkers = None,
    out: Annotated[Path, typer.Option(help="Folder for results, answers and pictures.")] = Path("runs/compare"),
    trust_remote_code: o.Trust = False,
) -> None:
    """Run the same problems under FullKV, the baselines and SkipKV, at every budget.

    FullKV runs first: a fractional budget is a fraction of its mean final length.
    """
    from skipkv.decoding import Settings
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import parse
    from skipkv.evaluation.comparison import check
    from skipkv.evaluation.comparison import compare as compare_methods
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.evaluation.tasks import max_new_tokens as longest_answer

    chosen = [parse(budget) for budget in budgets]
    options = {"window": window, "tau": tau, "lam": lam}
    check(baselines, chosen, options)
    problems = load_task(task, limit, start=start, shuffle=shuffle, seed=seed)
    o.check_samples(samples, temperature)
    settings = Settings(
        batch_size,
        schedule,
        longest_answer(task, max_new_tokens),
        temperature,
        top_p,
        seed=seed,
        interval=interval,
        prefill_chunk=prefill_chunk,
        compile=compiled,
    )
    o.check_vectors(vectors, count_with)
    store = Store(out, o.asked(context))
    loading = {"device": device, "dtype": dtype, "device_map": device_map, "trust_remote_code": trust_remote_code}
    with o.workforce(model, loading, ray, ray_workers) as (loaded, tokenizer, answerer), o.progress() as shown:
        steering = o.steering_vector(vectors, model, tokenizer, vector_layer, count_with, alpha0, gamma, max_shift)

        def started(title: str) -> Callable[[], None]:
            return o.bar(shown, title, samples * len(problems))

        result = compare_methods(
            loaded,
            tokenizer,
            problems,
            baselines=baselines,
            budgets=chosen,
            settings=settings,
            steering=steering,
            options=options,
            samples=samples,
            store=store,
            answerer=answerer,
            started=started,
        )
    o.console.print(report.table(result.rows))
    o.console.print(f"FullKV's mean final length: {result.full_length:.1f} tokens; {len(problems)} problems")
    o.console.print("to full: accuracy less FullKV's on the same problems, * where that is real (p < 0.05)")
    report.write(out, model, task, result.rows, result.full_length)
    report.draw(out, result.rows)
    o.console.print(f"-> {out}/results.json, answers.jsonl, accuracy.png, length.png")
