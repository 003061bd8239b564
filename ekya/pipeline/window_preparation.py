"""Preparation of a window, the same in every world with frames: labels, λ and γ (paper §4.3).

What is done with each stream, in which order, and what is told of it is here. A world says which streams are
there, carries out trials, and says what each step has cost: it measures that, or counts it by a cost card.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.events import Event, InferenceProfiled, LabelsReady, MemoryShort, ProfileReady
from ekya.core.gpus import DidNotFit
from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.core.weights import Compared, PooledLabels, SceneOf
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import calls_for
from ekya.models.training.label_weights import tried_of
from ekya.models.training.labelled import Examples
from ekya.models.training.microprofile import MicroProfile
from ekya.pipeline.device_scopes import UNCHARGED, DeviceScopes
from ekya.pipeline.labelling import Asked
from ekya.pipeline.labels import LabelPool, StreamLabels
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.planning.preparation.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PreparationStep,
    TrialStep,
    preparation_steps,
)
from ekya.planning.profiling.inference_profile import BurstFrame, inference_options, sides_of

_LOG = logging.getLogger(__name__)

FrameCosts = tuple[Mapping[int, float], Mapping[int, float]]
"""GPU-seconds to analyse a frame, and to follow its objects into the next; by resolution."""


@dataclass(frozen=True, slots=True, eq=False)
class StepWork:
    """What a step did, counted, so that a cost card can charge for it.

    Attributes:
        questions: to the golden model.
        images: numbers of images that the edge model analysed, each with their side in pixels.
        flow_operations: of following objects through a burst.
        trial_gpu_s: GPU-seconds of a trial, where the world counts them.
    """

    questions: Sequence[Question] = ()
    images: tuple[tuple[int, int], ...] = ()
    flow_operations: int = 0
    trial_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """GPU-seconds of a step, and the golden model's part of them."""

    gpu_s: float
    golden_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class DoneStep:
    """A step that was carried out.

    Attributes:
        finish: makes its event from the time at which it ended, and its cost.
        warning: about the golden model of a stream, which is also logged.
    """

    work: StepWork
    finish: Callable[[int, StepCost], Event]
    warning: str | None = None


class PreparingWorld(Protocol):
    """What differs between the worlds.

    Attributes:
        streams: inputs of each stream that is prepared; they change with the weights that are to serve.
        scopes: contexts in which models run.
        clock: seconds of a whole GPU that trials took so far.
    """

    streams: dict[StreamId, StreamPreparation]
    scopes: DeviceScopes
    clock: Callable[[], float]

    def admit_step(self, step: PreparationStep) -> PreparationStep | None:
        """Returns the step to do now: another stream may be labelled in the place of this one, or none."""

    def keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        """Keeps new labels of a stream, or the same with pooled ones, for its retrainings."""

    def cost_frames(
        self, stream: StreamId, configs: Sequence[InferenceConfig], burst: Sequence[BurstFrame]
    ) -> FrameCosts:
        """Returns what a stream's frames cost under these λ."""

    def run_trial(self, step: TrialStep, trial: MicroProfile) -> tuple[FamilyCurve, float]:
        """Runs a trial; returns its curve, and its GPU-seconds if they are counted."""

    def give_up_step(self, step: PreparationStep, error: Exception) -> None:
        """Handles the failure of a step, or raises it; the preparation goes on with the next one."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledStream:
    """A stream's new labels.

    Attributes:
        prepared: the preparation, with the weights that serve after the shadow gate.
        labels: the labels.
        accuracy: of these weights on the validation part.
        compared: what the shadow gate compared.
        work: that it took.
        accuracy_on_all: see ``LabelsReady``.
        pooled: see ``LabelsReady``.
        warning: about the golden model, from the first labels of a stream.
    """

    prepared: StreamPreparation
    labels: StreamLabels
    accuracy: float
    compared: Compared | None
    work: StepWork
    accuracy_on_all: float | None = None
    pooled: PooledLabels | None = None
    warning: str | None = None

    def tell(self, stream: StreamId, window: int, t_us: int, cost: StepCost) -> LabelsReady:
        """Returns the event of these labels."""
        prepared, labels = self.prepared, self.labels
        return LabelsReady(
            t_us=t_us,
            stream=stream,
            window=window,
            training_crops=len(labels.training.examples),
            validation_crops=len(labels.validation.examples),
            serving_accuracy=self.accuracy,
            new_classes=len(prepared.outputs(labels)) > len(prepared.model.classes),
            gpu_s=cost.gpu_s,
            class_histogram=labels.histogram(len(prepared.settings.classes), prepared.golden.background),
            golden_gpu_s=cost.golden_gpu_s,
            compared=self.compared,
            golden_calls=calls_for(prepared.golden, self.work.questions),
            objects=labels.objects_in_frames,
            since_us=prepared.material.since_us,
            accuracy_on_all=self.accuracy_on_all,
            pooled=self.pooled,
        )


def label_stream(prepared: StreamPreparation, scopes: DeviceScopes = UNCHARGED) -> LabelledStream:
    """Labels a window of a stream and compares its newest weights with the earlier ones."""
    with scopes.host():
        asked = prepared.select()
        labels = prepared.label(asked)
    with scopes.scope():
        return _compare_on(prepared, asked, labels)


def _compare_on(prepared: StreamPreparation, asked: Asked, labels: StreamLabels) -> LabelledStream:
    images = [len(labels.validation.examples)]
    compared = prepared.compare(labels)
    if compared is not None:
        images.append(2 * prepared.compared_images(labels, compared))
    settled = replace(prepared.after_rollback(compared), earlier=None)
    work = StepWork(asked.questions, tuple((count, prepared.settings.side) for count in images))
    return LabelledStream(settled, labels, settled.serving_accuracy(labels), compared, work)


def measure_on_all(made: LabelledStream, stream: StreamId, pool: LabelPool) -> LabelledStream:
    """Returns new labels with the serving model's accuracy on all that it has not learnt from.

    Without more than validate that accuracy is theirs.
    """
    since_us = made.prepared.material.since_us
    fresh = pool.not_learnt(stream, made.labels, made.prepared.model, since_us)
    if len(fresh) <= len(made.labels.validation.examples):
        return made
    work = add_pass(made.work, fresh, made.prepared.settings.side)
    return replace(made, work=work, accuracy_on_all=made.prepared.accuracy_now(fresh))


def add_pass(work: StepWork, labels: Examples, side: int) -> StepWork:
    """Returns the work with that of measuring the serving model on all labels, at this side in pixels."""
    return replace(work, images=(*work.images, (len(tried_of(labels)), side)))


def join_pooled(
    made: LabelledStream, stream: StreamId, scenes: Sequence[SceneOf], pool: LabelPool
) -> LabelledStream:
    """Returns new labels, which the pool has, with its others of the same scene to learn from as well."""
    both, streams = pool.join_labels(stream, scenes)
    if both.pooled is None:
        return made
    return replace(made, labels=both, pooled=PooledLabels(streams, len(both.pooled)))


def check_teacher(made: LabelledStream, stream: StreamId) -> LabelledStream:
    """Returns a stream's first labels after a check of the golden model, with its work and its warning."""
    prepared, labels = made.prepared, made.labels
    images = (*made.work.images, (prepared.images_to_check_teacher(labels), prepared.settings.side))
    doubt = prepared.check_teacher(labels)
    warning = None if doubt is None else f"{stream}: {doubt}"
    if warning is not None:
        _LOG.warning("%s", warning)
    return replace(made, work=replace(made.work, images=images), warning=warning)


def profile_inference(
    prepared: StreamPreparation,
    configs: Sequence[InferenceConfig],
    cost_frames: Callable[[Sequence[InferenceConfig], Sequence[BurstFrame]], FrameCosts],
    scopes: DeviceScopes = UNCHARGED,
) -> tuple[tuple[InferenceOption, ...], StepWork]:
    """Returns each λ's relative accuracy on a labelled burst, and the share it needs (paper §3.1).

    Also returns the work that it took.
    """
    questions = prepared.burst_questions()
    burst = prepared.burst(configs, scopes)
    frame_gpu_s, following_gpu_s = cost_frames(configs, burst)
    fps, speed = prepared.settings.fps, prepared.settings.inference_speed
    options = inference_options(configs, burst, frame_gpu_s, fps, speed, following_gpu_s)
    images = tuple((prepared.images_in(burst), side) for side in sides_of(configs))
    return options, StepWork(questions, images, prepared.flow_operations(burst))


@dataclass(slots=True, eq=False)
class LabelMemory:
    """What a run remembers of the labels of earlier windows."""

    pool: LabelPool = field(default_factory=LabelPool)
    teacher_checked: set[StreamId] = field(default_factory=set)

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets a stream that was removed."""
        self.pool.forget_stream(stream)
        self.teacher_checked.discard(stream)


class WindowPreparation:
    """Prepares the streams of one window.

    Args:
        window: its index.
        world: in which it is prepared.
        memory: of the run.
    """

    def __init__(self, window: int, world: PreparingWorld, memory: LabelMemory) -> None:
        self._window, self._world, self._memory = window, world, memory
        self._labels: dict[StreamId, StreamLabels] = {}

    def prepare_streams(self, asked: Sequence[PrepareStream]) -> Iterator[DoneStep]:
        """Yields the steps for these streams, each carried out when it is requested."""
        labelled: dict[StreamId, Labelled] = {}
        scenes = {of.stream: of.scenes for of in asked}
        for planned in preparation_steps(asked, labelled):
            step = self._world.admit_step(planned)
            if step is None:
                continue
            try:
                match step:
                    case LabelStep():
                        yield self._label(step.stream, scenes[step.stream], labelled)
                    case InferenceStep():
                        yield self._profile_inference(step)
                    case TrialStep():
                        yield self._micro_profile(step)
            except Exception as error:
                self._world.give_up_step(step, error)
                if isinstance(step, TrialStep) and is_out_of_memory(error):
                    yield self._tell_memory_short(step, error)

    def _label(
        self, stream: StreamId, scenes: Sequence[SceneOf], labelled: dict[StreamId, Labelled]
    ) -> DoneStep:
        world, checked = self._world, self._memory.teacher_checked
        made = label_stream(world.streams[stream], world.scopes)
        with world.scopes.scope():
            made = measure_on_all(made, stream, self._memory.pool)
        # The first labels of a camera are to train it soon; the check, as dear as they are, can wait.
        is_first_scene = made.prepared.material.since_us is not None
        may_check = stream not in checked and not is_first_scene
        if may_check and made.prepared.images_to_check_teacher(made.labels):
            # Before the check: one that fails is not repeated in every window.
            checked.add(stream)
            try:
                with world.scopes.scope():
                    made = check_teacher(made, stream)
            except Exception as error:
                world.give_up_step(LabelStep(stream), error)  # the labels stay
        self._memory.pool.add(stream, made.labels, made.prepared.model)
        made = join_pooled(made, stream, scenes, self._memory.pool)
        world.streams[stream], self._labels[stream] = made.prepared, made.labels
        world.keep_labels(stream, made.labels)
        labelled[stream] = Labelled(made.accuracy, made.labels.can_train)
        return DoneStep(made.work, partial(made.tell, stream, self._window), made.warning)

    def _profile_inference(self, step: InferenceStep) -> DoneStep:
        world, stream, window = self._world, step.stream, self._window
        prepared, costs = world.streams[stream], partial(world.cost_frames, stream)
        options, work = profile_inference(prepared, step.configs, costs, world.scopes)
        calls = calls_for(prepared.golden, work.questions)
        return DoneStep(
            work,
            lambda t_us, cost: InferenceProfiled(
                t_us, stream, window, options, cost.gpu_s, cost.golden_gpu_s, calls
            ),
        )

    def _micro_profile(self, step: TrialStep) -> DoneStep:
        stream, window = step.stream, self._window
        curve, gpu_s = self._run_trial(step, self._labels[stream])
        work = StepWork(trial_gpu_s=gpu_s)
        return DoneStep(work, lambda t_us, cost: ProfileReady(t_us, stream, window, curve, cost.gpu_s))

    def _run_trial(self, step: TrialStep, labels: StreamLabels) -> tuple[FamilyCurve, float]:
        """Returns the curve of a family on these labels, and the GPU-seconds of the trial if counted."""
        world = self._world
        trial = world.streams[step.stream].trial(step.family, labels, world.clock, world.scopes.scope)
        return world.run_trial(step, trial)

    def _tell_memory_short(self, step: TrialStep, error: Exception) -> DoneStep:
        window, what = self._window, DidNotFit(step.family, 0.0)
        reason = f"{type(error).__name__}: {error}"
        return DoneStep(StepWork(), lambda t_us, _: MemoryShort(t_us, step.stream, window, what, reason))
