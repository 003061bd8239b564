"""Trainings on other servers: where they run, their progress and failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ekya.fleet.policy.places import SiteName
from ekya.models.training.trainer import EpochResult

State = Literal["starting", "training", "stranded", "done", "stopped", "failed"]
"""Stranded: its host is lost, and it waits for another."""


MOST_ATTEMPTS = 3
"""Number of processes that die under a training until its host is given up."""


class CallError(Exception):
    """A process or server is dead or does not answer, or failed; the message says so in one line."""


class GoneError(CallError):
    """A server answers, and does not have what was asked for: it was started again, or has given it up."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A training as it begins or goes on.

    Attributes:
        accuracy: on the validation part.
        epochs_done: number of epochs in its snapshot.
        planned_epochs: of γ.
    """

    accuracy: float
    epochs_done: int
    planned_epochs: int


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """An epoch at a host.

    Attributes:
        result: loss and accuracy.
        crops: on which it trained.
        took_s: wall time, waiting for the share included.
    """

    result: EpochResult
    crops: int
    took_s: float


@dataclass(frozen=True, slots=True)
class LentProgress:
    """Progress of a training that runs here for another service.

    Attributes:
        state: in one word.
        start_accuracy: on the validation part before its first epoch here; null until it is measured.
        epochs: those that are done here.
        crops: on which it trained.
        took_s: wall time of its epochs, in seconds.
        best: SHA-256 of the best checkpoint that was made here; empty before the first.
        best_epoch: its epoch.
        failures: processes that died meanwhile, one sentence each.
        reason: why it failed; empty otherwise.
    """

    state: State = "starting"
    start_accuracy: float | None = None
    epochs: tuple[EpochResult, ...] = ()
    crops: int = 0
    took_s: float = 0.0
    best: str = ""
    best_epoch: int = 0
    failures: tuple[str, ...] = ()
    reason: str = ""

    @property
    def over(self) -> bool:
        """True when no further epoch will come."""
        return self.state in ("done", "stopped", "failed")


class TrainingHost(Protocol):
    """A server that trains for another one. Methods block, and raise ``CallError``."""

    def begin_training(self, loan: str, bundle: bytes) -> None:
        """Begins a loan's training, once however often it is called."""

    def read_progress(self, loan: str) -> LentProgress:
        """Returns its progress."""

    def set_epochs(self, loan: str, epochs: int) -> None:
        """Sets its number of epochs in total."""

    def fetch_checkpoint(self, loan: str, digest: str) -> bytes:
        """Returns its best checkpoint, which has this SHA-256."""

    def end_training(self, loan: str) -> None:
        """Ends it, and its loan; does not wait, nor raise."""


@dataclass(frozen=True, slots=True)
class Host:
    """A server for one training.

    Attributes:
        site: its name.
        loan: under which it trains there.
        share_milli: of the machine, for the training.
        there: the server.
    """

    site: SiteName
    loan: str
    share_milli: int
    there: TrainingHost


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training.

    Attributes:
        state: in one word.
        planned_epochs: number of epochs in total.
        start_accuracy: on the validation part before the first epoch; None until it is measured.
        epochs: those that are done.
        epochs_home: number of the first epochs whose best checkpoint is at home.
        failures: processes and hosts that died or did not respond any more, one sentence each.
        sent: bytes by origin and target site; payload, without the overhead of calls.
        crops, share_s: on which it trained, and the time of that multiplied by the hosts' shares.
        reason: why it failed, or is stranded, or was when it was stopped; empty otherwise.
    """

    state: State
    planned_epochs: int
    start_accuracy: float | None = None
    epochs: tuple[EpochResult, ...] = ()
    epochs_home: int = 0
    failures: tuple[str, ...] = ()
    sent: Mapping[tuple[SiteName, SiteName], int] = field(default_factory=dict)
    crops: int = 0
    share_s: float = 0.0
    reason: str = ""

    @property
    def over(self) -> bool:
        """True when the training has ended."""
        return self.state in ("done", "stopped", "failed")
