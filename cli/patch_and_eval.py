"""skipkv patch-and-eval: one method, one budget, graded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipkv.cli import options as o


def patch_and_eval(
    context: typer.Context,
    model: o.Model = "reasoner",
    task: o.Task = "ledger",
    method: Annotated[str, typer.Option(help="full, streamingllm, h2o, snapkv, rkv or skipkv.")] = "skipkv",
    budget: Annotated[str, typer.Option(help="Slots per head, or a fraction of FullKV's mean final length.")] = "128",
    full_length: Annotated[float | None, typer.Option(help="FullKV's mean final length, for a fraction.")] = None,
    full_results: Annotated[Path | None, typer.Option(help="results.json of a compare run, instead.")] = None,
    vectors: o.Vectors = "auto",
    alpha0: o.Alpha0 = None,
    gamma: o.Gamma = None,
    max_shift: o.MaxShift = None,
    count_with: o.CountWith = "tokens",
    vector_layer: o.VectorLayer = None,
    batch_size: o.BatchSize = 10,
    schedule: o.Schedule = "continuous",
    limit: o.Limit = None,
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
    out: Annotated[Path, typer.Option(help="Folder for results.json and answers.jsonl.")] = Path("runs/patch-and-eval"),
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first prompt and stop.")] = False,
    trust_remote_code: o.Trust = False,
) -> None:
    """Patch a model's attention, steer it, and grade its answers."""
    from skipkv import policies
    from skipkv.decoding import Settings
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import in_slots, length_from, parse
    from skipkv.evaluation.models import load, load_tokenizer
    from skipkv.evaluation.runner import mean_length, run, summarise
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.evaluation.tasks import max_new_tokens as longest_answer
    from skipkv.evaluation.tasks import prompt_for

    length = length_from(full_results) if full_results else full_length
    slots = None if method == "full" else in_slots(parse(budget), length)
    policy = policies.build(method, budget=slots, window=window, tau=tau, lam=lam)
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
    if show_prompt:
        typer.echo(prompt_for(problems[0], load_tokenizer(model, trust_remote_code)))
        return
    o.check_vectors(vectors, count_with)
    store = Store(out, o.asked(context))
    loaded, tokenizer = load(
        model, device=device, dtype=dtype, device_map=device_map, trust_remote_code=trust_remote_code
    )
    steering = o.steering_vector(vectors, model, tokenizer, vector_layer, count_with, alpha0, gamma, max_shift)
    with o.progress() as shown:
        answers = run(
            loaded,
            tokenizer,
            problems,
            policy,
            settings,
            samples=samples,
            steering=steering,
            store=store,
            finished=o.bar(shown, method, samples * len(problems)),
        )
    row = summarise(answers, full_length=length)
    o.console.print(report.table([row]))
    report.write(out, model, task, [row], mean_length(answers) if method == "full" else length)
    o.console.print(f"-> {out}/results.json, answers.jsonl")
