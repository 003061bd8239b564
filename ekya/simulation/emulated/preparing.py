"""Preparation of windows on virtual time: its steps are carried out at once, and charged by a cost card."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from ekya.core.commands import BeginPreparation
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.events import Event, Warned
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.profile import FamilyCurve
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import US_PER_S, StreamId
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import Labels
from ekya.models.training.microprofile import MicroProfile
from ekya.pipeline.costs import CostCard
from ekya.pipeline.device_scopes import UNCHARGED
from ekya.pipeline.golden_inference import TYPICAL_QUESTION
from ekya.pipeline.inference import serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.stream_preparation import StreamPreparation, counted_curve
from ekya.pipeline.window_preparation import (
    DoneStep,
    FrameCosts,
    LabelMemory,
    StepCost,
    StepWork,
    WindowPreparation,
)
from ekya.planning.preparation.steps import LabelStep, PreparationStep, TrialStep
from ekya.planning.profiling.inference_profile import BurstFrame, sides_of
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.executor import PreparedStep

_LOG = logging.getLogger(__name__)

_PROFILER = "micro-profiler"
"""Source of its warnings, named as in a live run."""


def cost_of_frames(
    golden: Labels,
    card: CostCard,
    proposer_operations: int,
    objects: float,
    followed: float,
    configs: Sequence[InferenceConfig],
) -> FrameCosts:
    """Returns what a plan takes frames to cost under these λ, by a cost card.

    Args:
        golden: the golden model.
        card: costs of all work.
        proposer_operations: counted operations of proposing objects in one frame.
        objects: in a frame that is analysed.
        followed: boxes that are followed from one frame into the next.
        configs: λ.
    """
    frame_gpu_s = {
        side: card.planned_frame_gpu_s(objects, side, proposer_operations) for side in sides_of(configs)
    }
    following_gpu_s: dict[int, float] = {}
    if any(config.by_golden for config in configs):
        following_gpu_s[GOLDEN_RESOLUTION] = card.following_gpu_s(followed)
        frame_gpu_s[GOLDEN_RESOLUTION] = golden_gpu_s(golden, card, [TYPICAL_QUESTION])
    return frame_gpu_s, following_gpu_s


def boxes_in(burst: Sequence[BurstFrame]) -> float:
    """Returns the mean number of boxes in a frame of a burst; a typical one if it is empty."""
    return mean(len(frame.labels) for frame in burst) if burst else TYPICAL_OBJECTS


def step_cost(work: StepWork, golden: Labels, card: CostCard) -> StepCost:
    """Returns the GPU-seconds of a step's work by a cost card."""
    golden_s = golden_gpu_s(golden, card, work.questions)
    gpu_s = golden_s + card.proposing_gpu_s(work.flow_operations) + work.trial_gpu_s
    for images, side in work.images:
        gpu_s += card.forward_gpu_s(images, side)
    return StepCost(gpu_s, golden_s)


def golden_gpu_s(golden: Labels, card: CostCard, questions: Sequence[Question]) -> float:
    """Returns the golden model's GPU-seconds for some questions, by a cost card."""
    return card.labelling_gpu_s(golden.operations(questions), golden.finds)


class PreparingWindows:
    """Preparation of one window after another; keeps from the last one what a retraining needs.

    It is the ``PreparingWorld`` of all of them.

    Args:
        cameras: by stream.
        golden: labels samples.
        card: costs of all work.
        proposer_operations: counted operations of proposing objects in one frame.
        speed: of a preparation at its share.
        believed: what a plan takes frames to cost by; None for ``card``.
    """

    def __init__(
        self,
        cameras: Mapping[StreamId, EmulatedCamera],
        golden: Labels,
        card: CostCard,
        proposer_operations: int,
        speed: SpeedCurve = LINEAR,
        believed: CostCard | None = None,
    ) -> None:
        self._cameras, self._golden = cameras, golden
        self._card, self._believed = card, card if believed is None else believed
        self._proposer_operations, self._speed = proposer_operations, speed
        self.scopes = UNCHARGED
        self.clock: Callable[[], float] = float  # trials take no time: their cost is counted
        self._window = 0
        self.streams: dict[StreamId, StreamPreparation] = {}
        self._memory = LabelMemory()

    def start_preparation(self, command: BeginPreparation, now_us: int) -> Iterator[PreparedStep]:
        """Starts a preparation, which takes new labels; returns its steps, executed when requested."""
        self._window, self.streams = command.window, {}
        preparation = WindowPreparation(command.window, self, self._memory)
        for asked in command.streams:
            camera = self._cameras[asked.stream]
            if asked.since_us is None:
                camera.labels = None
            camera.snapshot_serving()
            prepared = self.preparation_inputs(camera, command.window, now_us, asked.since_us)
            settings = prepared.settings.with_label_budget(command.budget)
            self.streams[asked.stream] = replace(prepared, settings=settings)
        speed = self._speed.speed_at(command.share_milli)
        return self._charge(preparation.prepare_streams(command.streams), speed)

    def end_preparation(self) -> None:
        """Ends the preparation and frees its data."""
        for stream in self.streams:
            self._cameras[stream].forget_material(self._window - 1)
        self.streams = {}

    def preparation_inputs(
        self,
        camera: EmulatedCamera,
        window: int,
        now_us: int,
        since_us: int | None = None,
    ) -> StreamPreparation:
        """Returns the inputs of preparing a camera's window, or of labelling it again since a time."""
        return StreamPreparation(
            camera.settings,
            camera.inference.material(window, now_us, since_us),
            camera.inference.serving,
            self._golden,
            exemplars=camera.memory.size,
            golden_gpu_s=partial(golden_gpu_s, self._golden, self._card),
        )

    def keep_remote_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        """Keeps labels that were made outside a preparation as the newest of a stream."""
        self._memory.pool.add(stream, labels)
        self.keep_labels(stream, labels)

    def admit_step(self, step: PreparationStep) -> PreparationStep:
        """Returns the step itself; loads the earlier weights with which labels compare those that serve."""
        if isinstance(step, LabelStep):
            prepared, earlier = self.streams[step.stream], self._cameras[step.stream].earlier
            if earlier is not None:
                # Loaded one at a time: a model for prediction is as large as one for training.
                before = serving(earlier.model, prepared.settings.classes)
                self.streams[step.stream] = replace(prepared, earlier=before)
        return step

    def keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        """Stores labels as the newest of a stream."""
        camera = self._cameras[stream]
        camera.labels = labels
        camera.models.add_labels(labels)

    def cost_frames(
        self, stream: StreamId, configs: Sequence[InferenceConfig], burst: Sequence[BurstFrame]
    ) -> FrameCosts:
        objects = self.streams[stream].material.mean_objects
        operations, followed = self._proposer_operations, boxes_in(burst)
        return cost_of_frames(self._golden, self._believed, operations, objects, followed, configs)

    def run_trial(self, step: TrialStep, trial: MicroProfile) -> tuple[FamilyCurve, float]:
        return counted_curve(trial, self._card)

    def give_up_step(self, step: PreparationStep, error: Exception) -> None:
        """Raises all errors but that a trial needs more memory than there is."""
        if not (isinstance(step, TrialStep) and is_out_of_memory(error)):
            raise error
        _LOG.warning("%s: a trial does not fit into the GPU's memory: %s", step.stream, error)

    def _charge(self, steps: Iterator[DoneStep], speed: float) -> Iterator[PreparedStep]:
        """Yields the steps with the time that they take at the speed of their share."""
        for done in steps:
            cost = step_cost(done.work, self._golden, self._card)
            yield PreparedStep(round(cost.gpu_s / speed * US_PER_S), _finish_at(done, cost))
            if done.warning is not None:
                yield PreparedStep(0, partial(Warned, source=_PROFILER, text=done.warning))


def _finish_at(done: DoneStep, cost: StepCost) -> Callable[[int], Event]:
    return lambda t_us: done.finish(t_us, cost)
