"""From labelled hidden states to a direction: cluster, leave out what lies elsewhere, subtract means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, silhouette_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skipkv.errors import BadInput
from skipkv.steering.activations import Activations
from skipkv.steering.functions import FUNCTIONS, NON_EXECUTION


@dataclass(frozen=True)
class LayerDirection:
    """The steering direction of one layer and how far the sentence functions lie apart there.

    Attributes:
        vector: [hidden] float32, mean(non-execution) - mean(execution) of the sentences kept.
        silhouette: of the clusters, from -1 to 1.
        auc: of a linear probe for non-execution, cross-validated with whole traces held out.
        kept: share of the sentences that lie in their own function's cluster.
        norm: length of the vector.
    """

    layer: int
    vector: np.ndarray
    silhouette: float
    auc: float
    kept: float
    norm: float


def direction(activations: Activations, layer: int, seed: int) -> LayerDirection:
    """The direction at one layer.

    States are standardised and clustered (KMeans, one cluster per function present); a function's cluster is the one in
    which its share is largest against the others', and sentences outside it are left out as mislabelled or unstable.

    Raises:
        BadInput: the traces lack non-execution or execution sentences.
    """
    functions = np.array(activations.functions)
    nonexec = np.isin(functions, NON_EXECUTION)
    if nonexec.all() or not nonexec.any():
        raise BadInput(
            f"the traces hold {int(nonexec.sum())} non-execution of {len(nonexec)} sentences; both kinds are needed"
        )
    states = activations.states[layer]
    scaled = StandardScaler().fit_transform(states)
    present = [name for name in FUNCTIONS if (functions == name).any()]
    clusters = KMeans(2 * len(present), n_init=4, random_state=seed).fit_predict(scaled)
    # Each cluster belongs to the function that dominates it.
    owner = {
        c: max(present, key=lambda name: (functions[clusters == c] == name).mean()) for c in set(clusters.tolist())
    }
    kept = np.array([owner[c] == name for c, name in zip(clusters.tolist(), functions, strict=True)])
    if not (kept & nonexec).any() or not (kept & ~nonexec).any():
        kept[:] = True  # the clusters do not follow the labels at all: trust the labels
    vector = states[kept & nonexec].mean(axis=0) - states[kept & ~nonexec].mean(axis=0)
    return LayerDirection(
        layer=layer,
        vector=vector.astype(np.float32),
        silhouette=float(silhouette_score(scaled, clusters, sample_size=min(2000, len(scaled)), random_state=seed)),
        auc=probe_auc(states, nonexec, activations.traces),
        kept=float(kept.mean()),
        norm=float(np.linalg.norm(vector)),
    )


def probe_auc(states: np.ndarray, nonexec: np.ndarray, traces: np.ndarray) -> float:
    """ROC AUC of a logistic probe on states [sentences, hidden]; whole traces are held out. NaN with one trace."""
    folds = min(5, len(set(traces.tolist())))
    if folds < 2:
        return float("nan")
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    guessed = cross_val_predict(probe, states, nonexec, groups=traces, cv=GroupKFold(folds), method="decision_function")
    return float(roc_auc_score(nonexec, guessed))
