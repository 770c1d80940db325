"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from skipkv.errors import BadInput, require_at_least

console = Console()
messages = Console(stderr=True)

Model = Annotated[str, typer.Option(help="Hub name, folder or .gguf file; 'reasoner' is the one that ships.")]
Task = Annotated[
    str,
    typer.Option(
        help="ledger, ledger-validation, gsm8k, math500, aime24, livecodebench; or a .jsonl or .parquet file."
    ),
]
Vectors = Annotated[
    str, typer.Option(help="Steering vector: .safetensors, .pt or .gguf; none; auto (the reasoner's own).")
]
BatchSize = Annotated[int, typer.Option(help="Rows that decode together.")]
Schedule = Annotated[str, typer.Option(help="static, grouped (sorted by prompt length) or continuous.")]
Start = Annotated[int, typer.Option(help="Leave out the first N problems.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Draw the problems' order by --seed first.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N problems.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest answer, in tokens; longer counts as wrong [the task's].")
]
Interval = Annotated[int | None, typer.Option(help="Tokens between compressions [half the budget, 16 to 128].")]
PrefillChunk = Annotated[int | None, typer.Option(help="Prompt tokens taken in at once [the whole prompt].")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the decode step; CUDA graphs on a GPU.")]
Samples = Annotated[int, typer.Option(help="Answers to each problem; above 1 with --temperature.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling and clustering.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
DeviceMap = Annotated[str | None, typer.Option(help="auto: spread a model over all GPUs (accelerate).")]
Ray = Annotated[str | None, typer.Option("--ray", help="Spread the work: a Ray cluster's address, or local.")]
RayWorkers = Annotated[int | None, typer.Option(help="Workers with --ray [one per GPU].")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with a hub model.")]
Alpha0 = Annotated[float | None, typer.Option(help="Steering strength before the first re-check [the vector's own].")]
Gamma = Annotated[float | None, typer.Option(help="Added strength per re-check [the vector's own].")]
MaxShift = Annotated[float | None, typer.Option(help="Longest shift, as a share of the hidden state's norm.")]
CountWith = Annotated[str, typer.Option(help="What counts re-checks: tokens (fast), or labeller.")]
VectorLayer = Annotated[int | None, typer.Option(help="Layer of another tool's vector.")]
Window = Annotated[int, typer.Option(help="Last tokens, which always stay.")]
Tau = Annotated[float, typer.Option(help="Similarity above which a sentence is redundant (skipkv).")]
Lam = Annotated[float, typer.Option(help="Weight of importance against redundancy (rkv, skipkv).")]


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display on standard error, gone when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as shown:
        yield shown


def bar(shown: Progress, title: str, total: int) -> Callable[[], None]:
    """A new bar; call the result once per thing done."""
    task = shown.add_task(title, total=total)
    return lambda: shown.advance(task)


def check_vectors(vectors: str, count_with: str) -> None:
    """Raises BadInput where --vectors names no file or --count-with is unknown, before any model is loaded."""
    if vectors not in ("none", "auto") and not Path(vectors).is_file():
        raise BadInput(f"--vectors is '{vectors}'; there is no such file")
    if count_with not in ("tokens", "labeller"):
        raise BadInput(f"--count-with is '{count_with}'; it must be tokens or labeller")


def steering_vector(
    vectors: str,
    model: str,
    tokenizer: Any,
    layer: int | None,
    count_with: str,
    alpha0: float | None = None,
    gamma: float | None = None,
    max_shift: float | None = None,
) -> Any:
    """The steering vector that --vectors means, or None; says so where nothing is steered though the user may think so.

    Raises:
        BadInput: the file is not a steering vector.
    """
    from skipkv.evaluation.models import REASONER, REASONER_VECTOR, same_place
    from skipkv.steering.vectors import load_vector

    if vectors == "none":
        return None
    if vectors == "auto":
        if not same_place(model, REASONER):
            messages.print("no steering: no vector ships for this model; make one with extract-vectors", style="yellow")
            return None
        vectors = str(REASONER_VECTOR)
    steering = load_vector(vectors, tokenizer=tokenizer, model=model, layer=layer)
    steering = steering.with_strength(alpha0, gamma, max_shift)
    return steering.counting_with(tokenizer) if count_with == "labeller" else steering


@contextmanager
def workforce(
    model: str, options: dict[str, Any], ray: str | None, workers: int | None
) -> Iterator[tuple[Any, Any, Any]]:
    """Model, tokenizer and answerer: the model itself, or, with --ray, a pool of workers that hold it."""
    from skipkv.evaluation.models import load, load_tokenizer

    if ray is None:
        yield (*load(model, **options), None)
        return
    from skipkv.evaluation.scale import Pool

    pool = Pool(ray, model, options, workers)
    try:
        yield None, load_tokenizer(model, options["trust_remote_code"]), pool.answers_of
    finally:
        pool.close()


def asked(context: typer.Context) -> dict[str, Any]:
    """The options of this command as given: what a run that goes on must have in common with its beginning."""
    return {name: str(value) for name, value in context.params.items() if name != "out"}


def check_samples(samples: int, temperature: float) -> None:
    """Raises BadInput where several samples would all be the same."""
    require_at_least("--samples", samples, 1)
    if samples > 1 and temperature == 0:
        raise BadInput(
            f"--samples is {samples} at --temperature 0, where all are alike; give a temperature, such as 0.6"
        )
