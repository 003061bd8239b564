"""Work of a preparation, step by step: labels, other models, λ and γ of its streams."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.core import events as ev
from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.gpus import DidNotFit
from ekya.core.host import StreamCosts
from ekya.core.profile import Family, FamilyCurve
from ekya.core.units import StreamId
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost, free_cache, is_out_of_memory
from ekya.models.training.microprofile import Price, Trying
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.metered_golden import MeteredGolden
from ekya.pipeline.pooled_labels import LabelPool, judge_pooled
from ekya.planning.adaptation.kept_models import should_try
from ekya.planning.preparation.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PoolStep,
    TrialStep,
    preparation_steps,
)
from ekya.runtime.actors.auditor import Auditor
from ekya.runtime.actors.preparation_job import PreparationJob
from ekya.runtime.shares.job_share import JobStoppedError
from ekya.runtime.weights.known_models import KnownModels

_LOG = logging.getLogger(__name__)
_HAND_IN_S = 1.0
"""Timeout for the next stream to hand in while others are labelled, before γ and λ are profiled."""


@dataclass(slots=True, eq=False)
class PreparationWork:
    """Does the steps of one preparation after another, and puts their results as events.

    Attributes:
        golden: labels.
        models: that the streams serve, or try.
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
    _teacher_checked: set[StreamId] = field(default_factory=set)
    _pool: LabelPool = field(default_factory=LabelPool)

    def forget(self, stream: StreamId) -> None:
        """Forgets what a stream was labelled with."""
        self.trained_crops.pop(stream, None)
        self._teacher_checked.discard(stream)
        self._pool.forget(stream)

    def prepare(self, preparation: PreparationJob) -> None:
        """Prepares streams in rounds, so that streams that hand in late do not delay the others."""
        while asked := preparation.awaited():
            self._prepare_streams(preparation, asked)
        if preparation.command.round == 0:
            self.auditor.audit(preparation, self.auditor.streams())

    def _prepare_streams(self, preparation: PreparationJob, asked: Sequence[PrepareStream]) -> None:
        labelled: dict[StreamId, Labelled] = {}
        timeout_s: float | None = None
        for planned in preparation_steps(asked, labelled):
            step = planned
            if isinstance(planned, LabelStep):
                stream = preparation.next_to_label(timeout_s)
                timeout_s = 0.0 if stream is None else _HAND_IN_S
                if stream is None:
                    continue
                step = LabelStep(stream)
            else:
                self.auditor.audit(preparation, preparation.take_overdue())
            try:
                match step:
                    case LabelStep():
                        labelled[step.stream] = self._label(preparation, step.stream)
                        self.auditor.audit(preparation, preparation.take_overdue(step.stream))
                        self._check_teacher(preparation, step.stream)
                        accuracy = self._try_others(preparation, step.stream, labelled[step.stream])
                        if accuracy is not None:
                            labelled[step.stream] = replace(labelled[step.stream], accuracy=accuracy)
                    case InferenceStep():
                        self._profile_inference(preparation, step.stream, step.configs)
                    case TrialStep():
                        self._micro_profile(preparation, step)
                    case PoolStep():
                        self._try_pooled(preparation, step)
            except JobStoppedError:
                raise
            except Exception as error:
                _LOG.exception("%s: a step of its preparation failed; it has no result", step.stream)
                end_process_if_gpu_is_lost(error)
                if isinstance(step, TrialStep) and is_out_of_memory(error):
                    window, what = preparation.command.window, DidNotFit(step.family, 0.0)
                    reason = f"{type(error).__name__}: {error}"
                    self.put(ev.MemoryShort(self.now_us(), step.stream, window, what, reason))
            finally:
                free_cache()

    def _label(self, preparation: PreparationJob, stream: StreamId) -> Labelled:
        prepared, golden_before_s = preparation.streams[stream], self.golden.took_s
        calls_before = self.golden.calls
        with preparation.share.batch():
            labels = prepared.label()
            compared = prepared.compare(labels)
            prepared = prepared.settled(compared)
            accuracy, probe = prepared.serving_accuracy(labels), prepared.probe(labels)
        preparation.streams[stream] = prepared
        preparation.labels[stream] = labels
        self._pool.add(stream, labels)
        seen = self.trained_crops.get(stream, 0)
        self.trained_crops[stream] = seen + len(labels.training.examples)
        self.put(
            ev.LabelsReady(
                t_us=self.now_us(),
                stream=stream,
                window=preparation.command.window,
                training_crops=len(labels.training.examples),
                validation_crops=len(labels.validation.examples),
                serving_accuracy=accuracy,
                new_classes=len(prepared.outputs(labels)) > len(prepared.model.classes),
                gpu_s=preparation.used_s,
                golden_gpu_s=self.golden.took_s - golden_before_s,
                compared=compared,
                golden_calls=self.golden.calls - calls_before,
                objects=labels.objects_in_frames,
                since_us=prepared.material.since_us,
                picture=prepared.material.picture,
                probe=probe,
                class_histogram=labels.histogram(len(prepared.settings.classes), self.golden.background)
                if prepared.settings.describes
                else (),
            )
        )
        return Labelled(accuracy, labels.can_train)

    def _check_teacher(self, preparation: PreparationJob, stream: StreamId) -> None:
        """Logs a warning if a stream's first labels say that the golden model is worse than its own."""
        prepared, labels = preparation.streams[stream], preparation.labels[stream]
        if stream in self._teacher_checked or not prepared.images_to_check_teacher(labels):
            return
        self._teacher_checked.add(stream)
        with preparation.share.batch():
            warning = prepared.check_teacher(labels)
        if warning is not None:
            _LOG.warning("%s: %s", stream, warning)

    def _try_others(self, preparation: PreparationJob, stream: StreamId, labelled: Labelled) -> float | None:
        """Tries kept models on new labels, and prepares the best instead if it is to serve.

        Returns:
            Its accuracy in that case, else None.
        """
        prepared, window = preparation.streams[stream], preparation.command.window
        lent = preparation.others[stream]
        if not lent or not should_try(labelled.accuracy, prepared.material.since_us):
            return None
        others = self.models.lent(lent, prepared.settings)
        with preparation.share.batch():
            offer = prepared.offer(preparation.labels[stream], others, preparation.kept[stream])
        if offer is None:
            return None
        preparation.streams[stream] = prepared.adopting(offer)
        self.put(offer.event(self.now_us(), stream, window, preparation.used_s))
        return None if preparation.streams[stream] is prepared else offer.accuracy

    def _profile_inference(
        self, preparation: PreparationJob, stream: StreamId, configs: tuple[InferenceConfig, ...]
    ) -> None:
        prepared = preparation.streams[stream]
        typical, golden_before_s = self.costs[stream], self.golden.took_s
        calls_before = self.golden.calls
        burst = prepared.burst(configs, scope=preparation.share.batch)
        frame_gpu_s = prepared.frame_gpu_s(typical)
        options = prepared.profile_inference(configs, frame_gpu_s, burst, typical.following_gpu_s)
        self.put(
            ev.InferenceProfiled(
                self.now_us(),
                stream,
                preparation.command.window,
                options,
                preparation.used_s,
                self.golden.took_s - golden_before_s,
                self.golden.calls - calls_before,
            )
        )

    def _micro_profile(self, preparation: PreparationJob, step: TrialStep) -> None:
        stream, window = step.stream, preparation.command.window
        curve = self._tried(preparation, step, preparation.labels[stream])
        if step.first:
            preparation.alone[stream] = curve
        self.put(ev.ProfileReady(self.now_us(), stream, window, curve, preparation.used_s))

    def _try_pooled(self, preparation: PreparationJob, step: PoolStep) -> None:
        """Tries the first family again if there are pooled labels."""
        stream, window = step.stream, preparation.command.window
        both, streams = self._pool.beside(stream, step.scenes)
        if both.pooled is None or stream not in preparation.alone:
            return
        alone = preparation.alone[stream]
        again = self._tried(preparation, TrialStep(stream, step.family, first=True), both)
        pooled, curve = judge_pooled(both, streams, alone, again)
        if pooled.learns:
            preparation.labels[stream] = both
        used_s = preparation.used_s
        self.put(ev.ProfileReady(self.now_us(), stream, window, curve, used_s, pooled))

    def _tried(self, preparation: PreparationJob, step: TrialStep, labels: StreamLabels) -> FamilyCurve:
        """Returns the curve of a family on these labels."""
        trial = preparation.streams[step.stream].trial(
            step.family,
            labels,
            clock=preparation.share.worth_s,
            scope=preparation.share.batch,
            first=step.first,
        )
        return trial.untried(self.prices[step.family]) if trial.way is Trying.NOT_AT_ALL else trial.run()
