"""Requests of an operator, which reach the loop as events."""

from dataclasses import dataclass

from ekya.core.areas import Areas
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import LabelBudget


@dataclass(frozen=True, slots=True)
class StreamPaused:
    """A stream is paused: its camera is closed, its retraining ends, and it holds no share; or it goes on."""

    t_us: int
    stream: StreamId
    paused: bool


@dataclass(frozen=True, slots=True)
class StreamRemoved:
    """A stream is removed; the loop forgets it when the next window opens."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class ModelFrozen:
    """A stream keeps the model that serves: it is neither labelled nor retrained; or it is again."""

    t_us: int
    stream: StreamId
    frozen: bool


@dataclass(frozen=True, slots=True)
class RollBackRequested:
    """A stream shall serve earlier weights again, by their version."""

    t_us: int
    stream: StreamId
    version: ModelVersion


@dataclass(frozen=True, slots=True)
class LabelsRequested:
    """A stream shall be labelled and retrained now, as after a drift.

    Attributes:
        since_us: stream time since which its frames are labelled.
    """

    t_us: int
    stream: StreamId
    since_us: int


@dataclass(frozen=True, slots=True)
class TermsChanged:
    """A stream has other terms from now on.

    Attributes:
        weight: of its accuracy in the objective.
        max_age_us: latency limit of its results; None for none.
    """

    t_us: int
    stream: StreamId
    weight: float
    max_age_us: int | None


@dataclass(frozen=True, slots=True)
class AreasChanged:
    """Objects of a stream count elsewhere in its picture from the next frame on."""

    t_us: int
    stream: StreamId
    areas: Areas


@dataclass(frozen=True, slots=True)
class MinAccuracyChanged:
    """The lowest accuracy that inference of a stream may have, a_MIN, changes for the fleet."""

    t_us: int
    min_accuracy: float


@dataclass(frozen=True, slots=True)
class SchedulerChanged:
    """Another scheduler decides from now on.

    Attributes:
        scheduler: its name with options, as in a fleet file; without a preset.
    """

    t_us: int
    scheduler: str


@dataclass(frozen=True, slots=True)
class LabelBudgetChanged:
    """Preparations that begin from now on have another budget of labels."""

    t_us: int
    budget: LabelBudget


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """The fleet may use another part of the machine from now on.

    Attributes:
        capacity_milli: all GPUs together.
        preparation_share_milli: largest share of labelling and profiling.
    """

    t_us: int
    capacity_milli: int
    preparation_share_milli: int


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """The fleet's file has changed so that only a start of the service brings it into effect.

    Attributes:
        reason: what has changed, in one sentence.
    """

    t_us: int
    reason: str


StreamRequest = (
    StreamPaused
    | StreamRemoved
    | ModelFrozen
    | RollBackRequested
    | LabelsRequested
    | TermsChanged
    | AreasChanged
)
"""Requests about one stream."""

FleetRequest = MinAccuracyChanged | SchedulerChanged | LabelBudgetChanged | CapacityChanged
"""Requests about the whole fleet, which hold until others of their kind."""

Request = StreamRequest | FleetRequest | RestartRequested
"""All requests, in the order in which those of one instant are applied."""
