"""State of one stream of the emulated world."""

from dataclasses import dataclass

from ekya.core import events as ev
from ekya.core.units import ModelVersion
from ekya.core.view import InferenceOption
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.run_writer import FrameRecord, ModelRecord
from ekya.pipeline.settings import PreparationSettings
from ekya.simulation.emulated.stream import EmulatedStream
from ekya.simulation.retraining import Checkpoint, VirtualRetraining


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Weights that served when labels were taken, with their version."""

    version: ModelVersion
    model: EdgeModel


@dataclass(slots=True, eq=False)
class EmulatedCamera:
    """State of one stream.

    Attributes:
        joins_us: run time at which the stream is added.
        misfortunes: losses and returns of its camera, reported at their time.
        judged: weights that served when labels were last taken.
        earlier: weights that served before ``judged``, if they were other ones.
        trained_on: labels of the last retraining.
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
    joins_us: int = 0
    misfortunes: tuple[ev.StreamLost | ev.StreamBack, ...] = ()
    added: bool = False
    end_reported: bool = False
    judged: Served | None = None
    earlier: Served | None = None
    trained_on: StreamLabels | None = None

    def snapshot_serving(self) -> None:
        """Records the serving weights before new labels are taken, and keeps the previously recorded ones."""
        before = self.judged
        self.earlier = before if before is not None and before.version != self.version else None
        self.judged = Served(self.version, self.model)

    def forget_earlier(self) -> None:
        """Drops the earlier weights: after the serving ones have been judged, no rollback happens."""
        self.earlier = None

    def forget_material(self, window: int) -> None:
        """Drops the frames kept of a window once it is labelled."""
        if self.labels is not None and self.labels.window == window:
            self.inference.forget_material()

    def serve(self, running: VirtualRetraining[EdgeModel], best: Checkpoint[EdgeModel], now_us: int) -> None:
        """Serves the best weights of a retraining."""
        self._serve(best.model, now_us)
        self.models.add_model(
            self.version,
            to_bytes(best.model, half=True),
            running.window,
            running.config,
            best.validation_accuracy,
            now_us,
        )

    def roll_back(self, now_us: int) -> ModelVersion | None:
        """Serves the earlier weights again under a new version; returns their old version, if any."""
        earlier = self.earlier
        if earlier is None:
            return None
        self._serve(earlier.model, now_us)
        self.judged, self.earlier = Served(self.version, self.model), None
        self.models.serve_again(self.version, earlier.version, now_us)
        return earlier.version

    def remember_exemplars(self) -> None:
        """Adds exemplars of the labels of a finished retraining."""
        if self.trained_on is not None:
            self.memory = self.memory.update_exemplars(self.trained_on.training.examples)

    def _serve(self, model: EdgeModel, now_us: int) -> None:
        self.version, self.model = ModelVersion(self.version + 1), model
        self.inference.swap(model, self.version, now_us)
