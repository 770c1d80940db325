"""skipkv doctor: does the patch fit this model and these versions?"""

from __future__ import annotations

import typer

from skipkv.cli import options as o


def doctor(
    model: o.Model = "reasoner",
    device: o.Device = "cpu",
    dtype: o.Dtype = "float32",
    trust_remote_code: o.Trust = False,
) -> None:
    """Compare the patched model with the plain one; exit code 1 when they write different tokens."""
    from skipkv.evaluation.models import load
    from skipkv.patches.doctor import examine, surroundings

    loaded, tokenizer = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    failed = False
    for finding in (*surroundings(loaded), *examine(loaded, tokenizer)):
        mark = {None: "", True: "[green]ok[/] ", False: "[red]FAILED[/] "}[finding.ok]
        o.console.print(f"{finding.what:<34} {mark}{finding.told}", highlight=False)
        failed |= finding.ok is False
    if failed:
        o.console.print("The patch does not fit: please report the lines above with the model's name.")
        raise typer.Exit(1)
