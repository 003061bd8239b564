"""An update of a store: what is wanted, what is known while it runs, and its outcome."""

from dataclasses import dataclass
from typing import Literal

from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.deep_edge.stopping import Outlook
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.run.live.trained_elsewhere import node_of
from ekya.fleet.run.training.protocol import TrainingProgress

OrderedBy = Literal["request", "trigger"]
"""Origin of an update: a request over REST or in Python, or the store's own trigger."""


@dataclass(frozen=True, slots=True)
class UpdateOrder:
    """An update that is wanted.

    Attributes:
        update: its number in the run.
        store: its store.
        ordered_by: who wants it.
        epochs: upper bound.
        due_s: time from the order until it is due.
        weight: of its store's accuracy.
        until_us: run time at which it is due.
    """

    update: int
    store: StreamId
    ordered_by: OrderedBy
    epochs: int
    due_s: float
    weight: float
    until_us: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of an update.

    Attributes:
        update: its number.
        ordered_by: as in ``UpdateOrder``.
        epochs: that were done in its last attempt.
        accuracy: of the weights given to the store, on its held-out samples; None without weights.
        failures: processes and machines that died during that.
        reason: why it ended early, or without weights; empty otherwise.
    """

    update: int
    ordered_by: OrderedBy
    epochs: int
    accuracy: float | None
    failures: int
    reason: str


@dataclass(slots=True, eq=False)
class Update:
    """An update that is wanted or under way.

    Attributes:
        order: the update.
        offer: None before it is known.
        attempts: that failed.
        again_us: run time before which it is not offered.
        loan: under which it runs.
        why: reason why it does not run.
        judged: number of epochs that the accuracy monitor has seen.
        outlook: its last estimate.
        result: its best weights when its training was over, and the progress then.
    """

    order: UpdateOrder
    offer: TrainingOffer | None
    attempts: int = 0
    again_us: int = 0
    loan: Loan | None = None
    why: str = ""
    judged: int = 0
    outlook: Outlook | None = None
    result: tuple[RemoteCheckpoint, TrainingProgress] | None = None


def crop_gpu_s(loan: Loan, progress: TrainingProgress) -> float | None:
    """Returns the GPU-seconds that a sample has taken, by its hosts' shares; None where it is unknown."""
    took_s, crops = 0.0, 0
    for part in loan.parts:
        work = progress.work.get(node_of(part.host, loan.offer.stream))
        if work is not None:
            took_s += work.compute_s * part.share_milli / FULL_GPU_MILLI
            crops += work.crops
    return took_s / crops if crops else None
