"""A stream of the emulated world, with all that its effects change."""

from dataclasses import dataclass

from ekya.core import events as ev
from ekya.core.ids import ModelVersion
from ekya.core.view import InferenceOption
from ekya.learning.edge import EdgeModel
from ekya.learning.memory import ExemplarMemory
from ekya.sim.elsewhere import ArrivingWeights, KeptModels
from ekya.sim.stream import EmulatedStream
from ekya.sim.training import EmulatedRetraining
from ekya.workers.labels import StreamLabels
from ekya.workers.preparation import PreparationSettings
from ekya.workers.record import FrameRecord, ModelRecord


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Weights that served when labels were taken, and under which number."""

    version: ModelVersion
    model: EdgeModel


@dataclass(slots=True, eq=False)
class EmulatedCamera:
    """A stream with everything that is its own; ``kept`` where a scheduler wants kept models.

    ``judged`` served when labels were taken last, and ``earlier`` before it, where that was another model.
    ``misfortunes`` are losses and returns of its camera, told at their time; it is added at ``joins_us``.
    """

    settings: PreparationSettings
    inference: EmulatedStream
    frames: FrameRecord
    models: ModelRecord
    model: EdgeModel
    options: tuple[InferenceOption, ...]
    version: ModelVersion
    memory: ExemplarMemory
    labels: StreamLabels | None = None
    retraining: EmulatedRetraining | ArrivingWeights | None = None
    kept: KeptModels | None = None
    joins_us: int = 0
    misfortunes: tuple[ev.StreamLost | ev.StreamBack, ...] = ()
    added: bool = False
    told_of_end: bool = False
    judged: Served | None = None
    earlier: Served | None = None
