"""Work of a preparation, step by step: labels, λ and γ of streams, and the models it knows."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.host import TYPICAL_OBJECTS, StreamCosts
from ekya.core.profile import Family, FamilyCurve
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost, free_cache
from ekya.models.edge.multi_model import Predictors
from ekya.models.training.microprofile import MicroProfile, Price
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.inference import Serving, serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.window_preparation import FrameCosts, LabelMemory, StepCost, WindowPreparation
from ekya.planning.preparation.steps import InferenceStep, LabelStep, PreparationStep, TrialStep
from ekya.planning.profiling.inference_profile import BurstFrame
from ekya.runtime.actors.preparation_job import Auditor, PreparationJob
from ekya.runtime.shares.job_share import JobStoppedError
from ekya.runtime.weights.model_batcher import PreparedWeights

_LOG = logging.getLogger(__name__)


class KnownModels:
    """The newest loaded model of each stream. Methods may be called by several threads.

    Args:
        predictors: of models on the device.
    """

    def __init__(self, predictors: Predictors) -> None:
        self._predictors = predictors
        self._known: dict[StreamId, PreparedWeights] = {}
        self._loading = threading.Lock()

    def load_model(
        self, stream: StreamId, settings: PreparationSettings, version: ModelVersion, weights: bytes
    ) -> None:
        """Loads a stream's model, unless a newer one is loaded."""
        with self._loading:
            known = self._known.get(stream)
            if known is None or version > known.version:
                self._known[stream] = PreparedWeights(self._loaded(weights, settings), version)

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets the model of a stream."""
        with self._loading:
            self._known.pop(stream, None)

    def newest_model(
        self,
        stream: StreamId,
        settings: PreparationSettings,
        version: ModelVersion,
        weights: Callable[[], bytes],
    ) -> PreparedWeights:
        """Returns the serving model; the newest loaded one if the serving one cannot be fetched."""
        known = self._known.get(stream)
        if known is None or known.version < version:
            try:
                self.load_model(stream, settings, version, weights())
            except Exception as error:
                if known is None:
                    raise
                _LOG.warning("%s: its labels meet an earlier model (%s)", stream, error)
        return self._known[stream]

    def require_output(self, name: str) -> None:
        """Refuses a class that is no output of a model, for detectors, whose outputs stay.

        Raises:
            UserError: names the first stream whose model lacks it.
        """
        for stream, known in sorted(self._known.items()):
            if name not in known.model.model.classes:
                raise UserError(
                    f"{name}: the detector of {stream} has no output of this name, and gets no new ones; "
                    "use a class that it was made with"
                )

    def _loaded(self, weights: bytes, settings: PreparationSettings) -> Serving:
        return serving(from_bytes(weights), settings.classes, self._predictors)


_HAND_IN_S = 1.0
"""Timeout for the next stream to hand in while others are prepared, before the steps that follow."""


@dataclass(slots=True, eq=False)
class PreparationWork:
    """Does the steps of one preparation after another, and puts their results as events.

    Attributes:
        golden: labels.
        models: that the streams serve.
        auditor: labels frames of streams that are due, between the steps.
        costs: of each stream's frames; streams may be added.
        prices: of a trial, by family.
        now_us: returns run time.
        put: receives the events.
        trained_crops: number of crops that each stream was given to learn from.
    """

    golden: MeteredGolden
    models: KnownModels
    auditor: Auditor
    costs: Mapping[StreamId, StreamCosts]
    prices: Mapping[Family, Price]
    now_us: Callable[[], int]
    put: Callable[[ev.Event], None]
    trained_crops: dict[StreamId, int] = field(default_factory=dict)
    _memory: LabelMemory = field(default_factory=LabelMemory)

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets what a stream was labelled with."""
        self.trained_crops.pop(stream, None)
        self._memory.forget_stream(stream)

    def prepare_streams(self, preparation: PreparationJob) -> None:
        """Prepares streams in rounds, so that streams that hand in late do not delay the others."""
        world = _LiveWorld(self, preparation)
        self.golden.gpu_scope = preparation.share.batch
        window = WindowPreparation(preparation.command.window, world, self._memory)
        while asked := preparation.streams_to_prepare():
            world.hand_in_s = None
            for done in window.prepare_streams(asked):
                event = done.finish(self.now_us(), world.measure_cost())
                if isinstance(event, ev.LabelsReady):
                    seen = self.trained_crops.get(event.stream, 0)
                    self.trained_crops[event.stream] = seen + event.training_crops
                self.put(event)
                free_cache()
                if isinstance(event, ev.LabelsReady):
                    self.auditor.audit_streams(preparation, preparation.drain_overdue(event.stream))
        if preparation.command.round == 0:
            self.auditor.audit_streams(preparation, self.auditor.waiting_streams())


class _LiveWorld:
    """``PreparingWorld`` of one preparation: streams are labelled as they hand in, and costs are measured.

    Attributes:
        hand_in_s: timeout for the next stream to hand in; None for none.
    """

    def __init__(self, work: PreparationWork, preparation: PreparationJob) -> None:
        self._work, self._preparation = work, preparation
        self.streams = preparation.streams
        self.scopes = preparation.share.scopes
        self.clock = preparation.share.worth_s
        self.hand_in_s: float | None = None
        self._inference_first = preparation.inference_first
        self._golden_before_s = 0.0

    def measure_cost(self) -> StepCost:
        """Returns what was used since the last step, and by the golden model since this one began.

        A golden model on the CPU beside a GPU has used none of it.
        """
        golden = self._work.golden
        golden_s, self._golden_before_s = golden.took_s - self._golden_before_s, golden.took_s
        golden_s *= self.scopes.charges(golden.runs_on.device)
        return StepCost(self._preparation.used_s, golden_s)

    def admit_step(self, step: PreparationStep) -> PreparationStep | None:
        """Returns the step; the first ones of streams come in the order in which these hand in."""
        inference_first = step.stream in self._inference_first
        if isinstance(step, InferenceStep if inference_first else LabelStep):
            stream = self._preparation.next_handed_in(inference_first, self.hand_in_s)
            self.hand_in_s = 0.0 if stream is None else _HAND_IN_S
            if stream is None:
                return None
            step = replace(step, stream=stream)
        elif isinstance(step, LabelStep) and not self._preparation.has_begun(step.stream):
            return None
        else:
            self._work.auditor.audit_streams(self._preparation, self._preparation.drain_overdue())
        self._golden_before_s = self._work.golden.took_s
        return step

    def keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        self._preparation.labels[stream] = labels

    def cost_frames(
        self, stream: StreamId, configs: Sequence[InferenceConfig], burst: Sequence[BurstFrame]
    ) -> FrameCosts:
        """Returns measured costs, for as many objects as the window shows."""
        typical, objects = self._work.costs[stream], self.streams[stream].material.mean_objects
        return typical.at_crowd(objects / TYPICAL_OBJECTS), typical.following_gpu_s

    def run_trial(self, step: TrialStep, trial: MicroProfile) -> tuple[FamilyCurve, float]:
        """Returns the curve of a trial, which measures its own cost."""
        return trial.run(), 0.0

    def give_up_step(self, step: PreparationStep, error: Exception) -> None:
        """Logs the error; a stopped job ends the preparation."""
        if isinstance(error, JobStoppedError):
            raise error
        _LOG.error("%s: a step of its preparation failed; it has no result", step.stream, exc_info=error)
        end_process_if_gpu_is_lost(error)
        free_cache()
