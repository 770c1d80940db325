"""skipkv doctor: does the patch fit this model and these versions?"""

from __future__ import annotations

import typer

from skipkv.cli import options as o


@o.grouped
def doctor(
    model: o.ModelOptions,
) -> None:
    """Compare the patched model with the plain one; exit code 1 when they write different tokens."""
    from skipkv.patches.doctor import examine, surroundings

    loaded, tokenizer = model.load()
    failed = False
    for finding in (*surroundings(loaded), *examine(loaded, tokenizer)):
        mark = {None: "", True: "[green]ok[/] ", False: "[red]FAILED[/] "}[finding.ok]
        o.console.print(f"{finding.what:<34} {mark}{finding.told}", highlight=False)
        failed |= finding.ok is False
    if failed:
        o.console.print("The patch does not fit: please report the lines above with the model's name.")
        raise typer.Exit(1)
