"""A data store and its trigger (Deep-Edge §IV.A and Figure 8): when a model is updated."""

from dataclasses import dataclass
from typing import Literal, Protocol

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName
from ekya.fleet.run.training.protocol import Trained, TrainingTask

LaunchedBy = Literal["request", "trigger"]
"""Who wanted an update: somebody, over REST or in Python, or the store's own trigger."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The user's condition for an update (§III.C).

    Attributes:
        samples: new ones that have to be there, since the last update began.
        accuracy: of the serving model on the newest ``samples``, below which it has to have fallen; None for
            whatever it is.
    """

    samples: int
    accuracy: float | None = None

    def enough(self, new: int, judged: int) -> bool:
        """Whether so many new samples ask for an update; for ``judged`` of them the model was good enough."""
        return new >= judged + self.samples

    def fallen(self, accuracy: float) -> bool:
        """Whether the model is so far off that it has to be updated."""
        return self.accuracy is None or accuracy < self.accuracy


class DataStore(Protocol):
    """What the manager asks of whoever keeps the samples of a model."""

    def job(self) -> TrainJob:
        """The update that it wants: its name, its epochs, how many samples lie where."""

    def task(self, assignment: Assignment) -> TrainingTask:
        """Samples and base model, on their way to the machines of an assignment."""

    def began(self) -> None:
        """The update of the last ``task`` is under way: its samples are no longer new."""

    def update(self, trained: Trained) -> None:
        """The weights that came of it."""

    def failed(self, reason: str) -> None:
        """There is no update this time, and why."""


class WatchedStore(DataStore, Protocol):
    """What a trigger is judged by besides."""

    @property
    def name(self) -> JobName:
        """Of its updates."""

    def new_samples(self) -> int:
        """How many came since the last update began; all where none has.

        Raises:
            UserError: they cannot be counted.
        """

    def accuracy(self, newest: int) -> float:
        """Of the serving model, on so many of the newest samples.

        Raises:
            UserError: none of them can be read, or the model cannot.
        """
