"""Settings by model: where a vector is added, and how hard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Preset:
    """Layer whose input is shifted, coefficient before the first re-check, and its fall with every one."""

    layer: int
    alpha0: float
    gamma: float = 0.02


# Published with the method (SkipKV, section 4); for R1-Distill-Llama-8B alpha0 is -1 on AIME-24.
PRESETS = {
    "DeepSeek-R1-Distill-Qwen-7B": Preset(20, -1.25),
    "DeepSeek-R1-Distill-Llama-8B": Preset(20, -1.25),
    "DeepSeek-R1-Distill-Qwen-14B": Preset(35, -1.0),
    "Qwen3-8B": Preset(25, -1.0),
}


def preset_for(model: str) -> Preset | None:
    """The preset of a model by its hub name or folder; None where there is none."""
    name = Path(model).name.lower()
    return next((preset for known, preset in PRESETS.items() if known.lower() == name), None)
