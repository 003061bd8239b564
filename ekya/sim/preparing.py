"""Labelling and profiling on virtual time, one step after the other, as `profiling.steps` orders them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ekya.core.commands import BeginPreparation
from ekya.core.compared import Compared
from ekya.core.configs import InferenceConfig
from ekya.core.events import Event, InferenceProfiled, LabelsReady, MemoryShort, ProfileReady
from ekya.core.ids import StreamId
from ekya.core.memory import DidNotFit
from ekya.labeling.detections import Question
from ekya.learning.device_memory import is_out_of_memory
from ekya.profiling.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PreparationStep,
    TrialStep,
    preparation_steps,
)
from ekya.workers.costs import CostCard
from ekya.workers.labels import Labels, StreamLabels
from ekya.workers.preparation import StreamPreparation, counted_curve

FinishedStep = Callable[[int], Event]
"""Makes the event of a step when the time at which it ended is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has been carried out and is still to be charged."""

    gpu_s: float
    finished: FinishedStep


class EmulatedPreparation:
    """All steps of one window's preparation, carried out one by one as they are asked for.

    Args:
        command: what to prepare.
        streams: what each stream is prepared from.
        card: what it costs.
        proposer_operations: counted operations of finding the objects of one frame.
        keep: is handed each stream's labels as soon as they are made.
    """

    def __init__(
        self,
        command: BeginPreparation,
        streams: dict[StreamId, StreamPreparation],
        card: CostCard,
        proposer_operations: int,
        keep: Callable[[StreamId, StreamLabels], None],
    ) -> None:
        self._command = command
        self._streams = streams
        self._card = card
        self._proposer_operations = proposer_operations
        self._keep = keep
        self._labels: dict[StreamId, StreamLabels] = {}
        self._labelled: dict[StreamId, Labelled] = {}

    def steps(self) -> Iterator[Step]:
        """Every step, carried out when it is asked for."""
        for step in preparation_steps(self._command.streams, self._labelled):
            yield self.carry_out(step)

    def carry_out(self, step: PreparationStep) -> Step:
        """One step; a stream's labels come before its trials."""
        match step:
            case LabelStep():
                return self._label(step.stream)
            case InferenceStep():
                return self._profile_inference(step.stream, step.configs)
            case TrialStep():
                return self._micro_profile(step)

    def _label(self, stream: StreamId) -> Step:
        prepared = self._streams[stream]
        selection = prepared.select()
        labels = prepared.label(selection)
        self._labels[stream] = labels
        self._keep(stream, labels)
        golden_s = golden_gpu_s(prepared.golden, self._card, selection.questions)
        gpu_s = golden_s + self._card.forward_gpu_s(selection.looked_at, prepared.settings.side)
        gpu_s += self._card.forward_gpu_s(len(labels.validation.crops), prepared.settings.side)
        compared = prepared.compare(labels)
        if compared is not None:
            gpu_s += self._card.forward_gpu_s(2 * compared.objects, prepared.settings.side)
        settled = prepared.settled(compared)
        self._streams[stream] = settled
        accuracy = settled.serving_accuracy(labels)
        self._labelled[stream] = Labelled(accuracy, labels.can_train)
        ready = partial(
            _labels_ready,
            stream=stream,
            prepared=settled,
            labels=labels,
            accuracy=accuracy,
            gpu_s=gpu_s,
            golden_s=golden_s,
            compared=compared,
        )
        return Step(gpu_s, ready)

    def _profile_inference(self, stream: StreamId, configs: tuple[InferenceConfig, ...]) -> Step:
        prepared = self._streams[stream]
        objects = prepared.material.mean_objects
        frame_gpu_s = {
            config.resolution: self._card.frame_gpu_s(objects, config.resolution, self._proposer_operations)
            for config in configs
        }
        burst = prepared.label_burst()
        options = prepared.profile_inference(configs, frame_gpu_s, burst)
        gpu_s = golden_s = golden_gpu_s(prepared.golden, self._card, prepared.burst_questions())
        for resolution in frame_gpu_s:
            gpu_s += self._card.forward_gpu_s(sum(len(classes) for _, classes in burst), resolution)
        window = self._command.window
        return Step(gpu_s, lambda t_us: InferenceProfiled(t_us, stream, window, options, gpu_s, golden_s))

    def _micro_profile(self, step: TrialStep) -> Step:
        stream = step.stream
        prepared = self._streams[stream]
        window = self._command.window
        trial = prepared.trial(step.family, self._labels[stream], clock=float, first=step.first)
        try:
            curve, gpu_s = counted_curve(trial, self._card)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            what, reason = DidNotFit(step.family, 0.0), f"{type(error).__name__}: {error}"
            return Step(0.0, lambda t_us: MemoryShort(t_us, stream, window, what, reason))
        return Step(gpu_s, lambda t_us: ProfileReady(t_us, stream, window, curve, gpu_s))


def golden_gpu_s(golden: Labels, card: CostCard, questions: Sequence[Question]) -> float:
    """GPU-seconds of a golden model for some questions, by a cost card."""
    return card.labelling_gpu_s(golden.operations(questions), golden.background is not None)


def _labels_ready(
    t_us: int,
    stream: StreamId,
    prepared: StreamPreparation,
    labels: StreamLabels,
    accuracy: float,
    gpu_s: float,
    golden_s: float,
    compared: Compared | None,
) -> LabelsReady:
    return LabelsReady(
        t_us=t_us,
        stream=stream,
        window=prepared.material.window + 1,
        training_crops=len(labels.training.crops),
        validation_crops=len(labels.validation.crops),
        serving_accuracy=accuracy,
        new_classes=len(prepared.outputs(labels)) > len(prepared.model.classes),
        gpu_s=gpu_s,
        class_histogram=labels.histogram(len(prepared.settings.classes), prepared.golden.background),
        golden_gpu_s=golden_s,
        compared=compared,
    )
