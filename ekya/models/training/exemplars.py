"""Exemplar memory after iCaRL: a few crops or frames per class (paper §2.2, [82])."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.models.edge.architecture_table import Task
from ekya.models.edge.model import EdgeModel, to_input
from ekya.models.edge.predictor import FORWARD_BATCH
from ekya.models.training.labelled import Examples, concatenate

MOST_EXEMPLARS: Mapping[Task, int] = MappingProxyType({Task.CLASSIFY: 120, Task.DETECT: 24})
"""Exemplars of one stream, all classes together: crops, or frames, each as large as 120 crops."""


@dataclass(frozen=True, slots=True, eq=False)
class ExemplarMemory:
    """Exemplars that a stream keeps of earlier windows.

    Attributes:
        budget: maximum number of exemplars, shared evenly by the classes seen.
        kept: the exemplars, class by class, in herding order; None before the first update.
    """

    budget: int = MOST_EXEMPLARS[Task.CLASSIFY]
    kept: Examples | None = None

    def exemplars(self) -> Examples | None:
        """Returns the exemplars, or None before the first update."""
        return self.kept

    @property
    def size(self) -> int:
        """Number of exemplars."""
        return 0 if self.kept is None else len(self.kept)

    def update_exemplars(self, model: EdgeModel, labelled: Examples) -> "ExemplarMemory":
        """Returns the memory after this window.

        Old exemplars and new crops of a class compete in the feature space of the current model.
        Deterministic: the same arguments give the same exemplars.
        """
        candidates = labelled if self.kept is None else concatenate([self.kept, labelled])
        if len(candidates) == 0:
            return self
        seen = candidates.by_class()
        # With more classes than the budget each has one exemplar, and the last ones are cut off below.
        quota = max(1, self.budget // max(len(seen), 1))
        chosen = [np.zeros(0, np.int64)]
        features = normalised_features(model, candidates.images)
        for members in seen:
            chosen.append(members[herd(features[members], quota)])
        # A frame may represent several classes.
        places = list(dict.fromkeys(np.concatenate(chosen).tolist()))
        return ExemplarMemory(self.budget, candidates.select_rows(np.array(places[: self.budget], np.int64)))


def herd(features: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Returns the positions of the ``count`` rows whose running mean stays nearest to the mean of all rows.

    Args:
        features: (N, F).
        count: number of rows to choose; all rows, in herding order, if there are fewer.

    Returns:
        (min(N, count),) int64, most representative first; of equals the earlier row wins.
    """
    target = features.mean(axis=0)
    total = np.zeros_like(target)
    left = np.ones(len(features), bool)
    chosen = np.zeros(min(len(features), count), np.int64)
    for step in range(len(chosen)):
        distance = np.linalg.norm(target - (total + features) / (step + 1), axis=1)
        best = int(np.argmin(np.where(left, distance, np.inf)))
        chosen[step], left[best] = best, False
        total = total + features[best]
    return chosen


@torch.inference_mode()
def normalised_features(model: EdgeModel, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the (N, F) float32 features of (N, S, S, 3) uint8 crops, each row scaled to length 1."""
    model.eval()
    device = str(next(model.parameters()).device)
    rows = [
        model.embed_images(to_input(crops[start : start + FORWARD_BATCH], device)).cpu().numpy()
        for start in range(0, len(crops), FORWARD_BATCH)
    ]
    features: NDArray[np.float32] = np.concatenate(rows)
    # Features behind a ReLU may all be 0.
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return features
