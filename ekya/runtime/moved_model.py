"""A stream's model in a process of another server, which answers its requests there."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import ModelVersion
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import ClassAnswer

ANSWERS_WITHIN_S = 1.0
"""Timeout of an answer, after which the stream's own process answers: the gap where a link is cut."""

LOADS_WITHIN_S = 30.0
"""Timeout of sending weights, which may be 45 MB over a slow link."""


class Process(Protocol):
    """A process of another server."""

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method and returns at once."""


@dataclass(frozen=True, slots=True, eq=False)
class MovedModel:
    """A model elsewhere; whatever carries the calls raises its own errors.

    Attributes:
        process: has the methods ``load_classifier`` and ``classify``.
        share_milli: of the process.
        classes: of the fleet; answers index them.
        side, resolutions: of its crops and its λ, for which it warms up.
    """

    process: Process
    share_milli: int
    classes: tuple[str, ...]
    side: int
    resolutions: Sequence[int]

    def load(self, model: EdgeModel, version: ModelVersion) -> None:
        """Sends weights; returns when they answer, unless newer ones are there."""
        told = (self.classes, int(version), self.share_milli, self.side, tuple(self.resolutions))
        self.process.call("load_classifier", to_bytes(model), *told).result(LOADS_WITHIN_S)

    def answer(self, images: NDArray[np.uint8], resolution: int) -> tuple[ClassAnswer, ModelVersion]:
        """Returns classes and confidences of (N, S, S, 3) uint8 RGB, and the version that gave them."""
        classes, confidence, version = self.process.call("classify", images, resolution).result(
            ANSWERS_WITHIN_S
        )
        return (classes, confidence), ModelVersion(version)
