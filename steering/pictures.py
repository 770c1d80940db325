"""What extraction found, as a picture: sentences in the plane of their two main components, and the layers compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from skipkv.files import new_figure, save_figure
from skipkv.steering.activations import Activations
from skipkv.steering.clustering import LayerDirection
from skipkv.steering.functions import FUNCTIONS

SHOWN = 3000  # sentences in the scatter at most


def draw(path: Path, activations: Activations, directions: Sequence[LayerDirection], chosen: int, seed: int) -> None:
    """Left: PCA of the states at layer `chosen`, by function. Right: AUC, silhouette and share kept by layer."""
    figure, (scatter, curve) = new_figure(columns=2)
    index = activations.layers.index(chosen)
    states = StandardScaler().fit_transform(np.asarray(activations.states[index]))
    plane = PCA(2, random_state=seed).fit_transform(states)
    functions = np.array(activations.functions)
    some = np.random.default_rng(seed).permutation(len(functions))[:SHOWN]
    for name in FUNCTIONS:
        dots = some[functions[some] == name]
        if len(dots):
            scatter.scatter(plane[dots, 0], plane[dots, 1], s=6, alpha=0.6, label=f"{name} ({len(dots)})")
    scatter.set(title=f"sentences at layer {chosen}", xlabel="first component", ylabel="second component")
    scatter.legend(frameon=False)
    layers = [found.layer for found in directions]
    for measure, title in (("auc", "probe AUC"), ("silhouette", "silhouette"), ("kept", "share kept")):
        curve.plot(layers, [getattr(found, measure) for found in directions], marker="o", label=title)
    curve.axvline(chosen, color="black", linewidth=0.8, linestyle=":")
    curve.set(title="how far the functions lie apart", xlabel="layer", ylim=(-0.05, 1.05))
    curve.legend(frameon=False)
    save_figure(figure, path)
