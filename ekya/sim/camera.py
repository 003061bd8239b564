"""A stream of the emulated world, with all that its effects change."""

from dataclasses import dataclass

from ekya.core import events as ev
from ekya.core.elsewhere import CachedModel
from ekya.core.ids import ModelVersion
from ekya.core.view import InferenceOption
from ekya.learning.checkpoints import to_bytes
from ekya.learning.edge import EdgeModel
from ekya.learning.memory import ExemplarMemory
from ekya.sim.elsewhere import ArrivingWeights, ComingHome, KeptModels
from ekya.sim.stream import EmulatedStream
from ekya.sim.training import EmulatedRetraining
from ekya.workers.labels import StreamLabels
from ekya.workers.record import FrameRecord, ModelRecord
from ekya.workers.settings import PreparationSettings


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
    retraining: EmulatedRetraining | ArrivingWeights | ComingHome | None = None
    kept: KeptModels | None = None
    joins_us: int = 0
    misfortunes: tuple[ev.StreamLost | ev.StreamBack, ...] = ()
    added: bool = False
    told_of_end: bool = False
    judged: Served | None = None
    earlier: Served | None = None

    def judge(self) -> None:
        """New labels are about to be taken: what serves now stands beside what served when they were last."""
        before = self.judged
        self.earlier = before if before is not None and before.version != self.version else None
        self.judged = Served(self.version, self.model)

    def forget_earlier(self) -> None:
        """What serves has been judged: nothing goes back to the weights before it any more."""
        self.earlier = None

    def forget_material(self, window: int) -> None:
        """What was kept of a window, if that is labelled: nobody looks at its frames again."""
        if self.labels is not None and self.labels.window == window:
            self.inference.forget_material()

    def serve_best(self, now_us: int) -> float | None:
        """The best weights of its retraining serve from now on; their validation accuracy, if any."""
        retraining = self.retraining
        if retraining is None or retraining.best is None:
            return None
        best = retraining.best
        self._serve(best.model, now_us)
        weights = to_bytes(best.model, half=True)
        self.models.add_model(
            self.version, weights, retraining.window, retraining.config, best.validation_accuracy, now_us
        )
        return best.validation_accuracy

    def roll_back(self, now_us: int) -> ModelVersion | None:
        """The earlier weights serve again, under a new number; the number they had, if any."""
        earlier = self.earlier
        if earlier is None:
            return None
        self._serve(earlier.model, now_us)
        self.judged, self.earlier = Served(self.version, self.model), None
        self.models.serve_again(self.version, earlier.version, now_us)
        return earlier.version

    def remember(self) -> None:
        """Exemplars of the labels that a retraining ended with, chosen by its best weights."""
        if self.retraining is not None and self.retraining.best is not None and self.labels is not None:
            self.memory = self.memory.update(self.retraining.best.model, self.labels.training.crops)

    def keep(self, background: int | None) -> CachedModel | None:
        """Its newest model, kept with its labels' mix of classes, where a scheduler wants kept models."""
        if self.kept is None or self.labels is None:
            return None
        return self.kept.keep(self.labels, self.settings, background)

    def _serve(self, model: EdgeModel, now_us: int) -> None:
        self.version, self.model = ModelVersion(self.version + 1), model
        self.inference.swap(model, self.version, now_us)
