"""What a run leaves behind: a table, results.json, answers.jsonl, and two pictures."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from skipkv.evaluation.runner import Difference, Row
from skipkv.evaluation.sweep import Point
from skipkv.files import new_figure, save_figure, write_atomically


def label(row: Row) -> str:
    """The method as the table and the pictures name it."""
    return row.method + (" steered" if row.steered else "")


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The rows for the terminal."""
    shown = Table(title=title or None, box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    shown.add_column("method", overflow="fold")  # long names give way, numbers do not
    for heading in ("budget", "accuracy (95 %)", "to full", "tokens", "nonexec", "tok/s", "KV KiB"):
        shown.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    for row in rows:
        low, high = row.accuracy_ci
        share = "" if row.budget_share is None else f" ({row.budget_share:.2f})"
        shown.add_row(
            label(row),
            "all" if row.budget is None else f"{row.budget}{share}",
            f"{row.accuracy:.2f} ({low:.2f}-{high:.2f})",
            told(row.to_full),
            f"{row.mean_new_tokens:.1f}",
            f"{row.nonexec_per_answer:.2f}",
            f"{row.tokens_per_second:.0f}",
            f"{row.peak_kv_bytes / 1024:.0f}",
        )
    return shown


def over_seeds(runs: Sequence[Sequence[Row]], title: str) -> Table:
    """The same rows under several seeds: mean and standard deviation."""
    shown = Table("method", "share", "accuracy", "tokens", title=title, box=None)
    for rows in zip(*runs, strict=True):
        right, written = ([getattr(row, name) for row in rows] for name in ("accuracy", "mean_new_tokens"))
        share = "all" if rows[0].budget_share is None else f"{rows[0].budget_share:.2f}"
        spread = (f"{mean(right):.3f} ± {stdev(right):.3f}", f"{mean(written):.1f} ± {stdev(written):.1f}")
        shown.add_row(label(rows[0]), share, *spread)
    return shown


def sweep_table(points: Sequence[Point], chosen: Point) -> Table:
    """The settings of a sweep, the chosen one in bold."""
    titles = ("vector", "layer", "alpha0", "gamma", "accuracy", "tokens", "to none", "non-exec", "cut off")
    shown, plain = Table(*titles, box=None), points[0].row
    for point in points:
        row = point.row
        shown.add_row(
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
    return shown


def told(difference: Difference | None) -> str:
    """A difference in accuracy; a star where it is real."""
    return "" if difference is None else f"{difference.accuracy:+.2f}{'*' if difference.is_real else ' '}"


def over_baselines(rows: Sequence[Row]) -> str:
    """Our method against each baseline at the same budget, a line per row of ours."""
    return "\n".join(
        f"{label(row)} at {row.budget} slots: "
        + ", ".join(f"{told(difference).strip()} to {name}" for name, difference in row.to_baselines.items())
        for row in rows
        if row.to_baselines
    )


def write(out: Path, model: str, task: str, rows: Sequence[Row], full_length: float | None) -> None:
    """Writes results.json into the folder `out`, whole or not at all."""
    results = {"model": model, "task": task, "full_length": full_length, "rows": [asdict(row) for row in rows]}
    write_atomically(out / "results.json", json.dumps(results, indent=1) + "\n")


def draw(out: Path, rows: Sequence[Row]) -> None:
    """Draws accuracy.png and length.png: each method over its budgets, FullKV as a line."""
    picture(out / "accuracy.png", rows, "accuracy", [row.accuracy for row in rows])
    picture(out / "length.png", rows, "mean new tokens", [row.mean_new_tokens for row in rows])


def picture(path: Path, rows: Sequence[Row], title: str, values: Sequence[float]) -> None:
    """One number over the budget, a line per method."""
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    figure, axes = new_figure()
    for row, value in zip(rows, values, strict=True):
        if row.budget is None:
            axes.axhline(value, color="black", linestyle="--", linewidth=1, label=label(row))
        else:
            lines[label(row)].append((row.budget, value))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set(xlabel="budget (slots per head)", ylabel=title, ylim=(0, None))
    axes.legend(frameon=False)
    save_figure(figure, path)


def write_sweep(out: Path, model: str, task: str, points: Sequence[dict[str, Any]]) -> None:
    """Writes sweep.json and draws sweep.png: accuracy over mean new tokens, each setting a dot."""
    told = {"model": model, "task": task, "points": list(points)}
    write_atomically(out / "sweep.json", json.dumps(told, indent=1) + "\n")
    figure, axes = new_figure()
    for kind in ("none", "learned", "random"):
        some = [point for point in points if point["vector"] == kind]
        axes.scatter([p["mean_new_tokens"] for p in some], [p["accuracy"] for p in some], label=kind)
        for point in some if kind == "learned" else ():
            axes.annotate(f"{point['alpha0']:g}", (point["mean_new_tokens"], point["accuracy"]), fontsize=7)
    axes.set(xlabel="mean new tokens", ylabel="accuracy", ylim=(-0.02, 1.02))
    axes.legend(frameon=False)
    save_figure(figure, out / "sweep.png")


def write_fidelity(out: Path, model: str, rows: Sequence[dict[str, Any]]) -> None:
    """Writes fidelity.json and draws fidelity.png, added NLL over the position in the trace."""
    write_atomically(out / "fidelity.json", json.dumps({"model": model, "rows": list(rows)}, indent=1) + "\n")
    figure, axes = new_figure()
    for row in rows:
        points = [(point["position"], point["added_nll"]) for point in row["curve"]]
        axes.plot(*zip(*points, strict=True), label=f"{row['method']} {row['budget']}")
    axes.set(xlabel="position in the trace (tokens)", ylabel="added NLL (nats per token)")
    axes.legend(frameon=False)
    save_figure(figure, out / "fidelity.png")
