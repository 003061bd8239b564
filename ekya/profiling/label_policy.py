"""Which of a window's objects are worth a label: decided here, from what the serving model says of them.

The golden model has time for a part of what was seen (paper §2.2). A policy puts the objects in order; how
many of them are labelled is the budget's to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Objects that may be labelled, N of them.

    Attributes:
        pictures: (N,) int64, in which of the window's kept frames each is seen.
        confidence: (N,) float32 in [0, 1], the serving model's in its own answer; 0 where it was not asked.
        features: (N, F) float32, what its head sees of them; no columns where it was not asked.
    """

    pictures: NDArray[np.int64]
    confidence: NDArray[np.float32]
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Objects in the order in which they are worth a label.

    Attributes:
        rows: (N,) int64, of the candidates, the first first.
        by_chance: (N,) bool, for each of ``rows`` whether chance alone put it there. Only such objects may
            validate: a model would otherwise be measured by those that it was least sure of.
    """

    rows: NDArray[np.int64]
    by_chance: NDArray[np.bool_]

    def pictures(self, candidates: Candidates) -> NDArray[np.int64]:
        """The pictures in which they are seen, each once, in the order of the first object in each."""
        seen, first = np.unique(candidates.pictures[self.rows], return_index=True)
        ordered: NDArray[np.int64] = seen[np.argsort(first)]
        return ordered


class LabelPolicy(Protocol):
    """Puts objects in order."""

    @property
    def asks_model(self) -> bool:
        """Whether it needs the serving model's confidence and features."""

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """All candidates; the same for the same candidates and generator."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every object is as likely to be labelled as any other."""

    asks_model: bool = False

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """By chance."""
        count = len(candidates.pictures)
        return Order(rng.permutation(count), np.ones(count, np.bool_))


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Every second object by chance; of the others always the one that tells most.

    What it tells is how unsure the serving model is of it, 1 - confidence, plus how new it is: one less its
    cosine similarity to the nearest object that comes before it. Labels chosen so show what the model gets
    wrong, and not the same car ten times.
    """

    asks_model: bool = True

    def order(self, candidates: Candidates, rng: np.random.Generator) -> Order:
        """By turns."""
        count = len(candidates.pictures)
        by_chance = np.arange(count) % 2 == 0
        length = np.linalg.norm(candidates.features, axis=1, keepdims=True)
        features = candidates.features / np.maximum(length, np.finfo(np.float32).tiny)
        chance = iter(rng.permutation(count).tolist())
        novelty, left = np.ones(count), np.ones(count, np.bool_)
        rows: list[int] = []
        for turn in by_chance:
            if turn:
                row = next(at for at in chance if left[at])
            else:
                row = int(np.argmax(np.where(left, 1.0 - candidates.confidence + novelty, -np.inf)))
            rows.append(row)
            left[row] = False
            novelty = np.minimum(novelty, 1.0 - features @ features[row])
        return Order(np.array(rows, np.int64), by_chance)


UNIFORM = "uniform"

LABEL_POLICIES: Mapping[str, LabelPolicy] = {UNIFORM: Uniform(), "uncertain": Uncertain()}
"""By the name that a fleet file gives them."""

SAMPLE_PART = 0.75
"""Of a label budget, what the window's sample may take; the rest is for the burst that λ is measured on."""


POOL = 2
"""Objects that the serving model is asked about for each that may be labelled: it costs as much as they do
where the golden model is small."""


def affordable(budget_gpu_s: float | None, one_gpu_s: float, most: int) -> int:
    """How many of at most ``most`` things at ``one_gpu_s`` each are within a budget; all without one."""
    if budget_gpu_s is None or one_gpu_s <= 0.0:
        return most
    # A budget that holds ten of them exactly holds ten, whatever a division makes of it.
    return min(max(int(budget_gpu_s / one_gpu_s + 1e-9), 0), most)
