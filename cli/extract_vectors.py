"""skipkv extract-vectors: from sentences to a steering vector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from skipkv.cli import options as o


def extract_vectors(
    model: o.Model = "reasoner",
    traces: Annotated[Path | None, typer.Option(help="JSONL with text, thinking or response.")] = None,
    layer: Annotated[str, typer.Option(help="Layer whose input is steered, or auto.")] = "auto",
    out: Annotated[Path, typer.Option(help="Where the vector goes.")] = Path("steering.safetensors"),
    position: Annotated[str, typer.Option(help="Token of a sentence: its end, or before it.")] = "end",
    alpha0: Annotated[float, typer.Option(help="Steering strength to save with the vector.")] = -1.0,
    gamma: Annotated[float, typer.Option(help="Added strength per re-check to save with it.")] = 0.02,
    task: o.Task = "ledger-validation",
    limit: o.Limit = None,
    batch_size: o.BatchSize = 10,
    max_new_tokens: o.MaxNewTokens = 1024,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float32",
    trust_remote_code: o.Trust = False,
) -> None:
    """Find the steering vector of a model by clustering the hidden states of its sentences.

    Without --traces the model first writes its own, on the problems of --task.
    """
    from skipkv.decoding import Settings
    from skipkv.evaluation.models import load
    from skipkv.evaluation.runner import run
    from skipkv.evaluation.tasks import load as load_task
    from skipkv.patches.families import parts_of
    from skipkv.policies import FullKV
    from skipkv.steering.activations import Trace
    from skipkv.steering.extraction import check_position, extract, layers_asked, read_traces
    from skipkv.steering.functions import thinking_of

    check_position(position)
    found = read_traces(traces)[:limit] if traces else []
    problems = [] if traces else load_task(task, limit)
    loaded, tokenizer = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    layers = layers_asked(layer, len(parts_of(loaded).layers))
    with o.progress() as shown:
        if not traces:
            settings = Settings(batch_size=batch_size, max_new_tokens=max_new_tokens, seed=seed)
            advance = o.bar(shown, "writing traces", len(problems))
            answers = run(loaded, tokenizer, problems, FullKV(), settings, finished=advance)
            found = [Trace(answer.prompt, thinking_of(answer.text)) for answer in answers]
        vector, directions = extract(
            loaded,
            tokenizer,
            found,
            layers=layers,
            position=position,
            alpha0=alpha0,
            gamma=gamma,
            seed=seed,
            progress=lambda indices: shown.track(indices, description="reading states"),
        )
    table = Table("layer", "silhouette", "probe AUC", "kept", "norm", box=None, header_style="bold")
    for one in directions:
        mark = "*" if one.layer == vector.layer else ""
        table.add_row(
            f"{one.layer}{mark}", f"{one.silhouette:.3f}", f"{one.auc:.3f}", f"{one.kept:.2f}", f"{one.norm:.2f}"
        )
    o.console.print(table)
    vector.save(out)
    o.console.print(f"layer {vector.layer} -> {out}")
