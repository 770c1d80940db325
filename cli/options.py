"""Options that several commands share, in groups, and what each group turns into."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from skipkv.errors import BadInput, require_at_least

console = Console()
messages = Console(stderr=True)

TASKS = "ledger, ledger-validation, gsm8k, math500, aime24, livecodebench; or a .jsonl or .parquet file."
METHODS = "full, streamingllm, h2o, snapkv, rkv or skipkv; or kvpress:PRESS, a scorer of kvpress."

Task = Annotated[str, typer.Option(help=TASKS)]
Limit = Annotated[int | None, typer.Option(help="Only the first N problems.")]
Start = Annotated[int, typer.Option(help="Leave out the first N problems.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Draw the problems' order by --seed first.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling, shuffling and clustering.")]
Interval = Annotated[int | None, typer.Option(help="Tokens between compressions; default: half the budget, 16 to 128.")]

MaxShift = Annotated[float | None, typer.Option(help="Longest shift, as a share of the hidden state's norm.")]
VectorLayer = Annotated[int | None, typer.Option(help="Layer of another tool's vector.")]

PLACES = ("ray", "ray_workers", "out")  # where work is done: it does not shape the answers


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take its options in dataclasses: Typer sees every field as an option of its own."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            group = groups[parameter.name]
            inner = get_type_hints(group, include_extras=True)
            shown += [
                parameter.replace(name=field.name, default=field.default, annotation=inner[field.name])
                for field in fields(group)
            ]
        else:
            shown.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def with_groups(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    ordered = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shown]
    with_groups.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return with_groups


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where it runs."""

    model: Annotated[str, typer.Option(help="Hub name, folder or .gguf file; 'reasoner' is the one that ships.")] = (
        "reasoner"
    )
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu"
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32"
    device_map: Annotated[str | None, typer.Option(help="auto: spread a model over all GPUs (accelerate).")] = None
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code of a hub model.")] = False

    def how(self) -> dict[str, Any]:
        """What `skipkv.evaluation.models.load` takes besides the name."""
        return {name: getattr(self, name) for name in ("device", "dtype", "device_map", "trust_remote_code")}

    def load(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        from skipkv.evaluation.models import load

        return load(self.model, **self.how())


@dataclass(frozen=True)
class RayOptions:
    """Who does the work."""

    ray: Annotated[str | None, typer.Option("--ray", help="Spread the work: a Ray cluster's address, or local.")] = None
    ray_workers: Annotated[int | None, typer.Option(help="Workers with --ray; default: one per GPU.")] = None

    @contextmanager
    def workforce(self, model: ModelOptions) -> Iterator[tuple[Any, Any, Any]]:
        """Model, tokenizer and answerer: the model itself, or, with --ray, a pool of workers that hold it."""
        from skipkv.evaluation.models import load_tokenizer

        if self.ray is None:
            yield (*model.load(), None)
            return
        from skipkv.evaluation.scale import Pool

        tokenizer = load_tokenizer(model.model, model.trust_remote_code)
        pool = Pool(self.ray, model.model, model.how(), self.ray_workers)
        try:
            yield None, tokenizer, pool.answers_of
        finally:
            pool.close()


@dataclass(frozen=True)
class DecodingOptions:
    """How answers are written."""

    batch_size: Annotated[int, typer.Option(help="Rows that decode together.")] = 10
    schedule: Annotated[str, typer.Option(help="static, grouped (sorted by prompt length) or continuous.")] = (
        "continuous"
    )
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens; longer counts as wrong; default: the task's.")
    ] = None
    interval: Interval = None
    prefill_chunk: Annotated[int | None, typer.Option(help="Prompt tokens taken in at once; default: all.")] = None
    compile: Annotated[bool, typer.Option("--compile", help="Compile the decode step; CUDA graphs on a GPU.")] = False
    samples: Annotated[int, typer.Option(help="Answers to each problem; above 1 with --temperature.")] = 1
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0

    def settings(self, task: str, seed: int) -> Any:
        """The decoding loop's settings.

        Raises:
            BadInput: a value is out of range, or several samples would all be the same.
        """
        from skipkv.decoding import Settings
        from skipkv.evaluation.tasks import max_new_tokens

        require_at_least("--samples", self.samples, 1)
        if self.samples > 1 and self.temperature == 0:
            raise BadInput(
                f"--samples is {self.samples} at --temperature 0, where all are alike; give a temperature, such as 0.6"
            )
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "samples"}
        return Settings(**own | {"max_new_tokens": max_new_tokens(task, self.max_new_tokens), "seed": seed})


@dataclass(frozen=True)
class SteeringOptions:
    """Which vector steers, and how hard."""

    vectors: Annotated[
        str, typer.Option(help="Steering vector: .safetensors, .pt or .gguf; none; auto (the reasoner's own).")
    ] = "auto"
    alpha0: Annotated[
        float | None, typer.Option(help="Steering strength before the first re-check; default: the vector's own.")
    ] = None
    gamma: Annotated[float | None, typer.Option(help="Added strength per re-check; default: the vector's own.")] = None
    max_shift: MaxShift = None
    count_with: Annotated[str, typer.Option(help="What counts re-checks: tokens (fast), or labeller.")] = "tokens"
    vector_layer: VectorLayer = None

    def check(self) -> None:
        """Raises BadInput where --vectors names no file or --count-with is unknown, before any model is loaded."""
        if self.vectors not in ("none", "auto") and not Path(self.vectors).is_file():
            raise BadInput(f"--vectors is '{self.vectors}'; there is no such file")
        if self.count_with not in ("tokens", "labeller"):
            raise BadInput(f"--count-with is '{self.count_with}'; it must be tokens or labeller")

    def vector(self, model: str, tokenizer: Any) -> Any:
        """The steering vector, or None; says so where nothing is steered though the user may think so.

        Raises:
            BadInput: the file is not a steering vector.
        """
        from skipkv.evaluation.models import REASONER, REASONER_VECTOR, same_place
        from skipkv.steering.vectors import load_vector

        source = self.vectors
        if source == "none":
            return None
        if source == "auto":
            if not same_place(model, REASONER):
                messages.print(
                    "no steering: no vector ships for this model; make one with extract-vectors", style="yellow"
                )
                return None
            source = str(REASONER_VECTOR)
        steering = load_vector(source, tokenizer=tokenizer, model=model, layer=self.vector_layer)
        steering = steering.with_strength(self.alpha0, self.gamma, self.max_shift)
        return steering.counting_with(tokenizer) if self.count_with == "labeller" else steering


@dataclass(frozen=True)
class PolicyOptions:
    """What the policies share or have for themselves; each takes what it knows."""

    window: Annotated[int, typer.Option(help="Last tokens, which always stay.")] = 8
    tau: Annotated[float, typer.Option(help="Similarity above which a sentence is redundant (skipkv).")] = 0.95
    centred: Annotated[
        bool,
        typer.Option("--centred", help="Compare sentences less the row's mean one (skipkv); try --tau 0.55."),
    ] = False
    lam: Annotated[float, typer.Option(help="Weight of importance against redundancy (rkv, skipkv).")] = 0.1


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


def asked(context: typer.Context, **own: Any) -> dict[str, str]:
    """The options as given, `own` in their place: what a run that goes on must share with its beginning."""
    return {name: str(value) for name, value in {**context.params, **own}.items() if name not in PLACES}
