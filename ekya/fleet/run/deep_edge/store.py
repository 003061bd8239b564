"""A data store and its trigger (Deep-Edge §IV.A and Figure 8): when a model is updated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.run.training.protocol import Trained, TrainingTask


@dataclass(frozen=True, slots=True)
class Trigger:
    """The user's condition for an update (§III.C).

    Attributes:
        samples: new ones that have to be there.
        accuracy: below which the serving model has to have fallen; 1 for whatever it is.
    """

    samples: int
    accuracy: float = 1.0

    def due(self, samples: int, accuracy: float) -> bool:
        """Whether so many new samples and this accuracy ask for an update."""
        return samples >= self.samples and accuracy < self.accuracy


class DataStore(Protocol):
    """What the manager asks of whoever keeps the samples of a model."""

    def job(self) -> TrainJob:
        """The update that it wants: its name, its epochs, how many samples lie where."""

    def task(self, assignment: Assignment) -> TrainingTask:
        """Samples and base model, on their way to the machines of an assignment."""

    def update(self, trained: Trained) -> None:
        """The weights that came of it."""

    def failed(self, reason: str) -> None:
        """There is no update this time, and why."""


@dataclass(slots=True, eq=False)
class TriggeredStore:
    """A store that asks for an update as soon as its condition holds.

    Attributes:
        store: where samples lie.
        trigger: the condition.
        ask: the manager's solver endpoint; takes the store.
    """

    store: DataStore
    trigger: Trigger
    ask: Callable[[DataStore], object]
    _asked: bool = False

    def look(self, samples: int, accuracy: float) -> bool:
        """Tells what is new; asks once each time the condition begins to hold. Whether it asked."""
        due = self.trigger.due(samples, accuracy)
        asks = due and not self._asked
        self._asked = due
        if asks:
            self.ask(self.store)
        return asks
