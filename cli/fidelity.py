"""skipkv fidelity: how far each method strays from the full cache on real reasoning traces."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from skipkv.cli import options as o
from skipkv.errors import BadInput, require_at_least

DEFAULT_METHODS = ["streamingllm", "h2o", "snapkv", "rkv", "skipkv"]
DEFAULT_BUDGETS = ["256"]


@o.grouped
def fidelity(
    context: typer.Context,
    *,
    model: o.ModelOptions,
    traces: Annotated[Path, typer.Option(help="JSONL with text, thinking or response.")],
    methods: Annotated[list[str], typer.Option(help=f"--methods h2o rkv skipkv. Known: {o.METHODS}")] = DEFAULT_METHODS,
    budgets: Annotated[list[str], typer.Option(help="Slots per head.")] = DEFAULT_BUDGETS,
    limit: o.Limit = None,
    max_tokens: Annotated[int, typer.Option(help="Only the first tokens of each trace.")] = 2048,
    interval: o.Interval = None,
    policy: o.PolicyOptions,
    out: Annotated[Path, typer.Option(help="Folder for fidelity.json and fidelity.png.")] = Path("runs/fidelity"),
) -> None:
    """Feed real traces through the patched model and compare every prediction with the full cache's."""
    from skipkv import policies
    from skipkv.evaluation import report
    from skipkv.evaluation.budgets import parse
    from skipkv.evaluation.fidelity import measure, read_text
    from skipkv.evaluation.store import RunFolder
    from skipkv.steering.extraction import read_traces

    slots = [parse(budget) for budget in budgets]
    if fractions := [budget for budget in slots if not isinstance(budget, int)]:
        raise BadInput(f"--budgets has {fractions[0]}; traces have no common full length: give slots, such as 256")
    require_at_least("--max-tokens", max_tokens, 2)
    chosen = [
        policies.build(name, budget=budget, **vars(policy))
        for budget in slots
        for name in methods
        if name != policies.FullKV.name
    ]
    found = read_traces(traces)[:limit]
    content = hashlib.sha256(traces.read_bytes()).hexdigest()
    folder = RunFolder(out / "measured", o.asked(context, traces=content, methods=None, budgets=None, limit=None))
    loaded, tokenizer = model.load()
    texts = [read_text(trace.thinking, tokenizer, max_tokens, trace.prompt) for trace in found]
    with o.progress() as shown:
        advance = o.bar(shown, "traces x methods", len(texts) * len(chosen))
        results = measure(loaded, tokenizer, texts, chosen, interval=interval, folder=folder, finished=advance)
    rows = [result.row() for result in results]
    table = Table(
        Column("method", overflow="fold"),
        "budget",
        "added NLL",
        "KL",
        "agreement",
        "NLL numbers",
        "NLL words",
        box=None,
    )
    for row in rows:
        kinds = [row["by_kind"].get(kind, {}).get("added_nll", float("nan")) for kind in ("number", "word")]
        numbers = (row["added_nll"], row["kl"], row["agreement"], *kinds)
        table.add_row(row["method"], str(row["budget"]), *(f"{number:.4f}" for number in numbers))
    o.console.print(table)
    o.console.print(f"{len(texts)} traces, {rows[0]['tokens']} tokens; nats per token, against the full cache")
    report.write_fidelity(out, model.model, rows)
    o.console.print(f"-> {out}/fidelity.json, fidelity.png")
