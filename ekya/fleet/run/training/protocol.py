"""Trainings on other servers: what they need, where they run, their progress and failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import Handle
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.trainer import Compute, EpochResult, Retraining, RetrainingData

State = Literal["starting", "training", "stranded", "done", "stopped", "failed"]
"""Stranded: its host is excluded, and it waits for another."""


@dataclass(frozen=True, slots=True)
class Host:
    """A server for one training.

    Attributes:
        site: its name.
        machine_id: identifies the machine's present life; one that comes back has another.
        share_milli: of the machine, for the training.
        gpu: index of its GPU, from 0.
    """

    site: SiteName
    machine_id: str
    share_milli: int
    gpu: int = 0


class NoProcessError(Exception):
    """A host provides no process; the message says why, in one line."""


class ProcessSource(Protocol):
    """Source of the processes of trainings, which are ``TrainingActor``s."""

    def take_process(self, host: Host) -> Handle:
        """Returns a process on a host; it may not have started yet, and errors appear in calls to it.

        Raises:
            NoProcessError: there is none for this training.
        """

    def give_back_process(self, host: Host, process: Handle) -> None:
        """Takes back a live process that is not used any more."""

    def is_there(self, machine_id: str) -> bool:
        """Returns whether the machine is alive under this id."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBundle:
    """All that a training needs. On equal machines it trains the same weights wherever it is, to the bit.

    Attributes:
        config: γ.
        start: checkpoint of the model to begin with and to distil from.
        data: to learn from.
    """

    config: RetrainConfig
    start: bytes
    data: RetrainingData

    def make_retraining(self, compute: Compute) -> Retraining:
        """Returns the training.

        Raises:
            UserError: the weights are damaged.
        """
        return Retraining(from_bytes(self.start), self.config, self.data, compute)

    @property
    def nbytes(self) -> int:
        """Size of the model, and of pictures and their labels."""
        data = self.data
        exemplars = None if data.memory is None else data.memory.exemplars()
        parts = (data.training, data.validation, data.pooled, exemplars)
        return len(self.start) + sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """A process or host that died, or did not respond any more.

    Attributes:
        site: of the host.
        epoch: during which it was found, 1 for the first.
        reason: in one line.
        left_out: the host takes no part from now on.
    """

    site: SiteName
    epoch: int
    reason: str
    left_out: bool


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """An epoch at a host.

    Attributes:
        result: loss and accuracy.
        crops: on which it trained.
        took_s: wall time, waiting for the share included.
        kept: there is a snapshot of it.
    """

    result: EpochResult
    crops: int
    took_s: float
    kept: bool


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training.

    Attributes:
        state: in one word.
        planned_epochs: number of epochs in total.
        start_accuracy: on the validation part before the first epoch; None until it is measured.
        epochs: those that are done.
        epochs_home: number of epochs in the newest checkpoint at home.
        failures: so far.
        sent: bytes by origin and target site; payload, without the overhead of calls.
        crops, share_s: on which it trained, and the time of that multiplied by the hosts' shares.
        moves: how often it was moved on request.
        reason: why it failed, or is stranded, or was when it was stopped; empty otherwise.
    """

    state: State
    planned_epochs: int
    start_accuracy: float | None = None
    epochs: tuple[EpochResult, ...] = ()
    epochs_home: int = 0
    failures: tuple[Failure, ...] = ()
    sent: Mapping[tuple[SiteName, SiteName], int] = field(default_factory=dict)
    crops: int = 0
    share_s: float = 0.0
    moves: int = 0
    reason: str = ""

    @property
    def over(self) -> bool:
        """True when the training has ended."""
        return self.state in ("done", "stopped", "failed")
