"""Label policies: order a window's objects by the worth of a label, from the serving model's output on them.

The golden model has time for a part of what was seen (paper §2.2). A policy puts the objects in order; the
budget decides how many of them are labelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N objects that may be labelled.

    Attributes:
        pictures: (N,) int64 index of the window's kept frame in which each is seen.
        confidence: (N,) float32 in [0, 1], the serving model's in its own answer; 0 where it did not run.
        features: (N, F) float32 input of the model's head for each; no columns where it did not run.
    """

    pictures: NDArray[np.int64]
    confidence: NDArray[np.float32]
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Objects in the order of labelling.

    Attributes:
        rows: (N,) int64 rows of the candidates, the most valuable first.
        by_chance: (N,) bool, for each of ``rows`` whether chance alone put it there. Only such objects may
            validate: a model would otherwise be measured on those that it was least sure of.
    """

    rows: NDArray[np.int64]
    by_chance: NDArray[np.bool_]

    def pictures(self, candidates: Candidates) -> NDArray[np.int64]:
        """Returns the pictures in which they are seen, each once, in the order of its first object."""
        seen, first = np.unique(candidates.pictures[self.rows], return_index=True)
        ordered: NDArray[np.int64] = seen[np.argsort(first)]
        return ordered


class LabelPolicy(Protocol):
    """Puts objects in the order of labelling."""

    @property
    def asks_model(self) -> bool:
        """True if it needs the serving model's confidence and features."""

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """Returns all candidates in order; the same for the same candidates and generator."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Labels every object with equal probability."""

    asks_model: bool = False

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """Returns a random order."""
        count = len(candidates.pictures)
        return Order(rng.permutation(count), np.ones(count, np.bool_))


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Alternates between an object drawn by chance and the most informative one that is left.

    An object is informative by the serving model's uncertainty, 1 - confidence, plus its novelty: one less
    its cosine similarity to the nearest object that comes before it. Such labels show what the model gets
    wrong, and not the same car ten times.
    """

    asks_model: bool = True

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """Returns the alternating order."""
        count = len(candidates.pictures)
        by_chance = np.arange(count) % 2 == 0
        length = np.linalg.norm(candidates.features, axis=1, keepdims=True)
        features = candidates.features / np.maximum(length, np.finfo(np.float32).tiny)
        chance = iter(rng.permutation(count).tolist())
        novelty, left = np.ones(count), np.ones(count, np.bool_)
        rows: list[int] = []
        for draws in by_chance:
            if draws:
                row = next(at for at in chance if left[at])
            else:
                row = int(np.argmax(np.where(left, 1.0 - candidates.confidence + novelty, -np.inf)))
            rows.append(row)
            left[row] = False
            novelty = np.minimum(novelty, 1.0 - features @ features[row])
        return Order(np.array(rows, np.int64), by_chance)


UNIFORM = "uniform"

LABEL_POLICIES: Mapping[str, LabelPolicy] = {UNIFORM: Uniform(), "uncertain": Uncertain()}
"""Policies by their name in the fleet file."""

SAMPLE_PART = 0.75
"""Part of a label budget for the window's sample; the rest is for the burst on which λ are measured."""


POOL = 2
"""Objects on which the serving model runs, for each that may be labelled. That costs as much as labelling
where the golden model is small."""


def affordable_count(budget_gpu_s: float | None, one_gpu_s: float, most: int) -> int:
    """Returns how many items at ``one_gpu_s`` each a budget covers, at most ``most``.

    Without a budget it is ``most``.
    """
    if budget_gpu_s is None or one_gpu_s <= 0.0:
        return most
    # A rounding error of the division must not cost an item where the budget is exact.
    return min(max(int(budget_gpu_s / one_gpu_s + 1e-9), 0), most)
