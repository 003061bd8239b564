"""Recipe of a training: how long, how fast, what is drawn, and how crops are varied."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import v2

LABEL_SMOOTHING = 0.05
WEIGHT_DECAY = 0.02
MOST_GRADIENT = 5.0
"""Gradients of a larger norm are scaled down to it."""

_SEEN_CROPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 145_000, 6, 60
_LARGE_SIDE, _BATCH, _LARGE_BATCH = 96, 64, 16
_FRESH_RATE, _RATE = 2e-3, 3e-4


@dataclass(frozen=True, slots=True)
class Recipe:
    """Length and rates of a training.

    Attributes:
        epochs: at most; in each as many crops are drawn as there are.
        batch: crops in a step.
        steps: of an epoch.
        rate: highest learning rate.
        patience: epochs without a better result after which it ends.
    """

    epochs: int
    batch: int
    steps: int
    rate: float
    patience: int

    def rate_at(self, step: int) -> float:
        """Returns the learning rate of a step, from 0: a linear warm-up, then a cosine down to 0."""
        every = self.epochs * self.steps
        warm_up = max(1, min(500, every // 10))
        part = min(1.0, max(0, step - warm_up) / max(1, every - warm_up))
        return self.rate * min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * part))


def choose_recipe(crops: int, side: int, fresh: bool, epochs: int | None = None) -> Recipe:
    """Returns the recipe for a number of training crops.

    Args:
        crops: to learn from.
        side: of a crop in pixels; large ones are trained on in smaller batches.
        fresh: whether the weights are fresh, and need larger steps.
        epochs: their number; None chooses it by the number of crops.
    """
    most = _BATCH if side < _LARGE_SIDE else _LARGE_BATCH
    batch = min(most, max(4, crops // 8))
    if epochs is None:
        epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, round(_SEEN_CROPS / crops)))
    rate = (_FRESH_RATE if fresh else _RATE) * math.sqrt(batch / _BATCH)
    return Recipe(epochs, batch, math.ceil(crops / batch), rate, max(5, epochs // 3))


def draw_balanced(
    classes: NDArray[np.int64], rows: NDArray[np.int64], count: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Returns the rows of an epoch: every class as often as any other, every crop of a class as often.

    Args:
        classes: (N,) of all crops.
        rows: of them those that train.
        count: rows to draw, with repetition.
        seed: of the training.
        epoch: from 0.
    """
    weights = 1.0 / np.bincount(classes[rows])[classes[rows]]
    drawn = np.random.default_rng((seed, epoch)).choice(rows, count, p=weights / weights.sum())
    return np.asarray(drawn, np.int64)


def make_augmentation(side: int) -> v2.Transform:
    """Returns what varies a (3, S, S) uint8 crop: mirrored, another part, other light, a part erased.

    The result is float32 in [0, 1].
    """
    return v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomResizedCrop(side, scale=(0.7, 1.0), ratio=(0.85, 1.18), antialias=True),
            v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomErasing(p=0.2, scale=(0.02, 0.2)),
        ]
    )


def to_pixels(crops: NDArray[np.uint8]) -> Tensor:
    """Converts (N, S, S, 3) uint8 to (N, 3, S, S) uint8."""
    return torch.from_numpy(crops).permute(0, 3, 1, 2)
