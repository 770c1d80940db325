"""The command line: one command per file, and bad input told in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from skipkv.cli.compare import compare
from skipkv.cli.doctor import doctor
from skipkv.cli.extract_vectors import extract_vectors
from skipkv.cli.fidelity import fidelity
from skipkv.cli.patch_and_eval import patch_and_eval
from skipkv.cli.sweep_steering import sweep_steering
from skipkv.errors import BadInput

app = typer.Typer(
    help="Shrinks the KV cache of reasoning models sentence by sentence, and steers them to write less.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("extract-vectors")(extract_vectors)
app.command("patch-and-eval")(patch_and_eval)
app.command("compare")(compare)
app.command("fidelity")(fidelity)
app.command("sweep-steering")(sweep_steering)
app.command("doctor")(doctor)


def options_of_several(command: str) -> set[str]:
    """The options of a command that take several values in a row."""
    known = getattr(typer.main.get_command(app), "commands", {})
    found = known[command].params if command in known else ()
    return {name for parameter in found if getattr(parameter, "multiple", False) for name in parameter.opts}


def repeat_options(arguments: Sequence[str]) -> list[str]:
    """Turns `--baselines h2o rkv` into `--baselines h2o --baselines rkv`, the form that Click knows."""
    several = options_of_several(arguments[0]) if arguments else set()
    spelled: list[str] = []
    option, taken = "", 0
    for argument in arguments:
        if argument.startswith("-") and not is_number(argument):
            option, taken = (argument, 0) if argument in several else ("", 0)
            spelled.append(argument)
        else:
            spelled += [option, argument] if option and taken else [argument]
            taken += 1
    return spelled


def is_number(argument: str) -> bool:
    """Whether an argument with a dash is a negative number, not an option."""
    try:
        float(argument)
    except ValueError:
        return False
    return True


def fail(message: str) -> int:
    """Prints one line on standard error and returns exit code 2."""
    print(f"skipkv: {' '.join(message.split())}", file=sys.stderr)
    return 2


def run(arguments: Sequence[str]) -> int:
    """Runs the command line and returns its exit code: 0, 2 for bad input, 130 when interrupted."""
    try:
        code = app(args=repeat_options(arguments), prog_name="skipkv", standalone_mode=False)
    except BadInput as error:
        return fail(str(error))
    except KeyboardInterrupt:
        print("skipkv: stopped; finished answers are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    except Exception as error:
        # Typer ships Click under another name in newer releases: its usage errors are known by their form.
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                print(
                    "skipkv: stopped; finished answers are kept, and the same command goes on from there",
                    file=sys.stderr,
                )
                return 130
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 2
        return fail(error.format_message())
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the `skipkv` command."""
    sys.exit(run(sys.argv[1:]))
