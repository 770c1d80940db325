"""From labelled hidden states to directions: cluster, leave out what lies elsewhere, subtract means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skipkv.errors import BadInput
from skipkv.steering.activations import Activations
from skipkv.steering.functions import CALC, CONCLUDE, FUNCTIONS, NON_EXECUTION, VERIFY

METHODS = ("kmeans", "gmm")
MOST = 2 * len(FUNCTIONS)  # clusters that "auto" tries at most
SAMPLED = 2000  # sentences that a silhouette is measured on
MAIN = "non-execution - execution"  # the direction that steers
DIRECTIONS = {
    MAIN: (NON_EXECUTION, tuple(name for name in FUNCTIONS if name not in NON_EXECUTION)),
    "verify - calc": ((VERIFY,), (CALC,)),
    "conclude - calc": ((CONCLUDE,), (CALC,)),
}


@dataclass(frozen=True)
class LayerDirection:
    """The directions of one layer and how far the sentence functions lie apart there.

    Attributes:
        vectors: by name of DIRECTIONS, [hidden] float32; means of the sentences kept.
        clusters: how many were found.
        silhouette: of the clusters, from -1 to 1.
        auc: of a linear probe for non-execution, cross-validated with whole traces held out.
        kept: share of the sentences that lie in their own function's clusters.
    """

    layer: int
    vectors: dict[str, np.ndarray]
    clusters: int
    silhouette: float
    auc: float
    kept: float

    @property
    def vector(self) -> np.ndarray:
        """The one that steers."""
        return self.vectors[MAIN]

    @property
    def norm(self) -> float:
        """Its length."""
        return float(np.linalg.norm(self.vector))


def direction(
    activations: Activations, index: int, seed: int, method: str = "kmeans", clusters: int | None = None
) -> LayerDirection:
    """The directions at layer number `index` of the activations.

    States are standardised and clustered; a cluster belongs to the function that dominates it, and sentences outside
    their own function's clusters are left out as mislabelled or unstable.

    Args:
        method: one of METHODS.
        clusters: how many; the number with the best silhouette where None.

    Raises:
        BadInput: the traces lack non-execution or execution sentences.
    """
    functions = np.array(activations.functions)
    nonexec = np.isin(functions, NON_EXECUTION)
    if nonexec.all() or not nonexec.any():
        raise BadInput(
            f"the traces hold {int(nonexec.sum())} non-execution of {len(nonexec)} sentences; both kinds are needed"
        )
    states = np.asarray(activations.states[index])
    scaled = StandardScaler().fit_transform(states)
    cluster, silhouette = clustered(scaled, method, clusters, seed)
    present = [name for name in FUNCTIONS if (functions == name).any()]
    share = np.array([[(functions[cluster == c] == name).mean() for name in present] for c in range(cluster.max() + 1)])
    kept = np.array(present)[share.argmax(axis=1)][cluster] == functions
    if not (kept & nonexec).any() or not (kept & ~nonexec).any():
        kept[:] = True  # the clusters do not follow the labels at all: trust the labels
    vectors = {}
    for name, (toward, away) in DIRECTIONS.items():
        sides = [kept & np.isin(functions, side) for side in (toward, away)]
        if all(side.any() for side in sides):
            vectors[name] = (states[sides[0]].mean(axis=0) - states[sides[1]].mean(axis=0)).astype(np.float32)
    return LayerDirection(
        layer=activations.layers[index],
        vectors=vectors,
        clusters=int(cluster.max()) + 1,
        silhouette=silhouette,
        auc=probe_auc(states, nonexec, activations.traces),
        kept=float(kept.mean()),
    )


def clustered(scaled: np.ndarray, method: str, clusters: int | None, seed: int) -> tuple[np.ndarray, float]:
    """The cluster of each state, numbered from 0 without gaps, and their silhouette.

    Args:
        scaled: [sentences, hidden].
        clusters: how many; None tries from 2 to MOST.
    """
    most = min(MOST, len(scaled) - 1)
    tried = [min(clusters, most)] if clusters else range(2, most + 1)

    def fit(count: int) -> tuple[float, np.ndarray]:
        model: Any = (
            KMeans(count, n_init=4, random_state=seed)
            if method == "kmeans"
            else GaussianMixture(count, covariance_type="diag", random_state=seed)
        )
        found = np.unique(model.fit_predict(scaled), return_inverse=True)[1]
        if found.max() == 0:
            return -1.0, found
        return float(silhouette_score(scaled, found, sample_size=min(SAMPLED, len(scaled)), random_state=seed)), found

    silhouette, found = max((fit(count) for count in tried), key=lambda pair: pair[0])
    return found, silhouette


def probe_auc(states: np.ndarray, nonexec: np.ndarray, traces: np.ndarray) -> float:
    """ROC AUC of a logistic probe on states [sentences, hidden]; whole traces are held out. NaN with one trace."""
    folds = min(5, len(set(traces.tolist())))
    if folds < 2:
        return float("nan")
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    guessed = cross_val_predict(probe, states, nonexec, groups=traces, cv=GroupKFold(folds), method="decision_function")
    return float(roc_auc_score(nonexec, guessed))
