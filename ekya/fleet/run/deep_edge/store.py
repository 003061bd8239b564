"""Data stores and their triggers (Deep-Edge §IV.A and Figure 8)."""

from dataclasses import dataclass
from typing import Literal, Protocol

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName
from ekya.fleet.run.training.protocol import Trained, TrainingTask

LaunchedBy = Literal["request", "trigger"]
"""Origin of an update: a request over REST or in Python, or the store's own trigger."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The user's condition for an update (§III.C).

    Attributes:
        samples: required number of new samples since the last update began.
        accuracy: upper bound of the serving model's accuracy on the newest ``samples``; None for no bound.
    """

    samples: int
    accuracy: float | None = None

    def enough(self, new: int, judged: int) -> bool:
        """Returns whether enough samples came after the ``judged`` ones, for which the model was good."""
        return new >= judged + self.samples

    def fallen(self, accuracy: float) -> bool:
        """Returns whether the model's accuracy is low enough for an update."""
        return self.accuracy is None or accuracy < self.accuracy


class DataStore(Protocol):
    """Source of a model's samples, as the manager uses it."""

    def job(self) -> TrainJob:
        """Returns the wanted update: its name, its epochs, and the number of samples by place."""

    def task(self, assignment: Assignment) -> TrainingTask:
        """Collects samples and base model for the machines of an assignment."""

    def began(self) -> None:
        """Marks the samples of the last ``task`` as no longer new: its update is under way."""

    def update(self, trained: Trained) -> None:
        """Receives the new weights."""

    def failed(self, reason: str) -> None:
        """Receives the reason of a failed update."""


class WatchedStore(DataStore, Protocol):
    """A data store with a trigger, which needs the number of new samples and the accuracy."""

    @property
    def name(self) -> JobName:
        """Name of its updates."""

    def new_samples(self) -> int:
        """Returns the number of samples since the last update began; all where none has.

        Raises:
            UserError: they cannot be counted.
        """

    def accuracy(self, newest: int) -> float:
        """Returns the serving model's accuracy on this number of the newest samples.

        Raises:
            UserError: none of them can be read, or the model cannot.
        """
