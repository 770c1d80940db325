"""skipkv extract-vectors: from sentences to a steering vector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from skipkv.cli import options as o
from skipkv.errors import BadInput


@o.grouped
def extract_vectors(
    *,
    model: o.ModelOptions,
    traces: Annotated[Path | None, typer.Option(help="JSONL with text, thinking or response.")] = None,
    layer: Annotated[
        str, typer.Option(help="Layer whose input is steered: 20, or 18,20,22 to choose of, or auto.")
    ] = "auto",
    out: Annotated[Path, typer.Option(help="Where the vector goes.")] = Path("steering.safetensors"),
    position: Annotated[str, typer.Option(help="What stands for a sentence: end, mean, next or before.")] = "end",
    label_with: Annotated[str, typer.Option(help="classifier, or keywords (the paper's three words).")] = "classifier",
    labels: Annotated[Path | None, typer.Option(help="Labelled sentences to fit the classifier on.")] = None,
    method: Annotated[str, typer.Option("--clustering", help="kmeans or gmm.")] = "kmeans",
    clusters: Annotated[str, typer.Option(help="How many, or auto: the best silhouette.")] = "auto",
    alpha0: Annotated[float, typer.Option(help="Steering strength to save with the vector.")] = -1.0,
    gamma: Annotated[float, typer.Option(help="Added strength per re-check to save with it.")] = 0.02,
    gguf: Annotated[Path | None, typer.Option(help="Write a control vector for llama.cpp as well.")] = None,
    task: o.Task = "ledger-validation",
    limit: o.Limit = None,
    seed: o.Seed = 0,
    decoding: o.DecodingOptions,
) -> None:
    """Find the steering vector of a model by clustering the hidden states of its sentences.

    Without --traces the model first writes its own, on the problems of --task, into a folder beside the vector; the
    same command goes on with them where it was stopped.
    """
    from skipkv.evaluation.runner import run
    from skipkv.evaluation.store import Store
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.patches.families import parts_of
    from skipkv.policies import FullKV
    from skipkv.steering.activations import POSITIONS, Trace
    from skipkv.steering.clustering import METHODS
    from skipkv.steering.extraction import extract, layers_asked, read_traces, row_of
    from skipkv.steering.formats import write_gguf
    from skipkv.steering.functions import labeller
    from skipkv.steering.pictures import draw
    from skipkv.thinking import thinking_of

    for option, given, known in (("--position", position, POSITIONS), ("--clustering", method, METHODS)):
        if given not in known:
            raise BadInput(f"{option} is '{given}'; it must be one of {', '.join(known)}")
    if clusters != "auto" and not (clusters.isdigit() and int(clusters) >= 2):
        raise BadInput(f"--clusters is '{clusters}'; it must be auto or a number from 2 on")
    label = labeller(label_with, labels)
    found = read_traces(traces)[:limit] if traces else []
    problems = [] if traces else load_task(task, limit)
    settings = decoding.settings(task, seed)
    asked = {"model": model.model, "dtype": model.dtype, "task": task, "limit": limit, "seed": seed, **vars(decoding)}
    store = None if traces else Store(out.with_name(f"{out.stem}-traces"), asked)
    loaded, tokenizer = model.load()
    layers = layers_asked(layer, len(parts_of(loaded).layers))
    with o.progress() as shown:
        if not traces:
            advance = o.bar(shown, "writing traces", decoding.samples * len(problems))
            answers = run(
                loaded, tokenizer, problems, FullKV(), settings, samples=decoding.samples, store=store, finished=advance
            )
            found = [Trace(answer.prompt, thinking_of(answer.text)) for answer in answers]
        extraction = extract(
            loaded,
            tokenizer,
            found,
            layers=layers,
            position=position,
            alpha0=alpha0,
            gamma=gamma,
            seed=seed,
            label=label,
            method=method,
            clusters=None if clusters == "auto" else int(clusters),
            batch_size=decoding.batch_size,
            finished=o.bar(shown, "reading states", len(found)),
        )
    vector, rows = extraction.vector, [row_of(one) for one in extraction.directions]
    table = Table(*max(rows, key=len), box=None, header_style="bold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()), style="bold" if row["layer"] == vector.layer else "")
    o.console.print(table)
    vector.save(out)
    draw(out.with_suffix(".png"), extraction.activations, extraction.directions, vector.layer, seed)
    if gguf:
        write_gguf(gguf, vector.vector, vector.layer, loaded.config.model_type)
    o.console.print(f"layer {vector.layer}: {extraction.why}")
    o.console.print(f"-> {out}, {out.with_suffix('.png')}" + (f", {gguf}" if gguf else ""))
