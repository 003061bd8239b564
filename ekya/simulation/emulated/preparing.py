"""Labelling and profiling on virtual time, in the order of `planning.profiling.preparation_steps`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from ekya.core.commands import BeginPreparation
from ekya.core.configs import InferenceConfig
from ekya.core.events import (
    Event,
    InferenceProfiled,
    LabelsReady,
    MemoryShort,
    ProfileReady,
)
from ekya.core.gpus import DidNotFit
from ekya.core.units import StreamId
from ekya.core.weights import Compared
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.detections import Question
from ekya.models.training.activation_cache import ActivationCache
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import Labels, StreamLabels
from ekya.pipeline.preparation import StreamPreparation, counted_curve
from ekya.planning.profiling.preparation_steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PreparationStep,
    TrialStep,
    preparation_steps,
)
from ekya.simulation.emulated.camera import EmulatedCamera

FinishedStep = Callable[[int], Event]
"""Makes the event of a step from the time at which it ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was executed and is still to be charged."""

    gpu_s: float
    finished: FinishedStep


class EmulatedPreparation:
    """All steps of one window's preparation, executed lazily one by one.

    Args:
        command: the window and streams to prepare.
        streams: inputs per stream.
        card: costs of the work.
        proposer_operations: counted operations of proposing objects in one frame.
        keep: receives each stream's labels as soon as they are made.
        earlier: for streams that serve another model now, the one that served when labels were last taken.
            Loaded one at a time: a model for prediction is as large as one for training.
    """

    def __init__(
        self,
        command: BeginPreparation,
        streams: dict[StreamId, StreamPreparation],
        card: CostCard,
        proposer_operations: int,
        keep: Callable[[StreamId, StreamLabels], None],
        earlier: Mapping[StreamId, EdgeModel] = MappingProxyType({}),
    ) -> None:
        self._command = command
        self._streams = streams
        self._card = card
        self._proposer_operations = proposer_operations
        self._keep = keep
        self._earlier = earlier
        self._labels: dict[StreamId, StreamLabels] = {}
        self._labelled: dict[StreamId, Labelled] = {}

    def steps(self) -> Iterator[Step]:
        """Yields every step, executed when it is requested."""
        for step in preparation_steps(self._command.streams, self._labelled):
            yield self.carry_out(step)

    def carry_out(self, step: PreparationStep) -> Step:
        """Executes one step; a stream's label step comes before its trials."""
        match step:
            case LabelStep():
                return self._label(step.stream)
            case InferenceStep():
                return self._profile_inference(step.stream, step.configs)
            case TrialStep():
                return self._micro_profile(step)

    def _label(self, stream: StreamId) -> Step:
        prepared = self._with_earlier(stream)
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
        self._streams[stream] = replace(settled, earlier=None)
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

    def _with_earlier(self, stream: StreamId) -> StreamPreparation:
        prepared, earlier = self._streams[stream], self._earlier.get(stream)
        if earlier is None:
            return prepared
        return replace(prepared, earlier=Classifier(earlier, prepared.settings.classes))

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


class PreparingWindows:
    """Preparation of one window after another; keeps from the last one what a retraining needs.

    Args:
        cameras: by stream.
        golden: labels samples.
        card: costs of all work.
        proposer_operations: see ``EmulatedPreparation``.
    """

    def __init__(
        self,
        cameras: Mapping[StreamId, EmulatedCamera],
        golden: Labels,
        card: CostCard,
        proposer_operations: int,
    ) -> None:
        self._cameras, self._golden, self._card = cameras, golden, card
        self._proposer_operations = proposer_operations
        self._command = BeginPreparation(0, 0, ())
        self._prepared: dict[StreamId, StreamPreparation] = {}
        self._passed: dict[StreamId, tuple[EdgeModel, ActivationCache]] = {}

    def begin(self, command: BeginPreparation, now_us: int) -> Iterator[Step]:
        """Starts a preparation, which takes new labels; returns its steps."""
        prepared: dict[StreamId, StreamPreparation] = {}
        earlier: dict[StreamId, EdgeModel] = {}
        for asked in command.streams:
            camera = self._cameras[asked.stream]
            camera.labels = None
            camera.judge()
            prepared[asked.stream] = self.of(camera, command.window, now_us)
            if camera.earlier is not None:
                earlier[asked.stream] = camera.earlier.model
        self._command, self._prepared, self._passed = command, prepared, {}
        return EmulatedPreparation(
            command, prepared, self._card, self._proposer_operations, self.keep_labels, earlier
        ).steps()

    def end(self) -> None:
        """Ends the preparation and frees its data, except outputs of frozen blocks for retrainings."""
        for stream, prepared in self._prepared.items():
            if prepared.passed is not None:
                self._passed[stream] = (prepared.model, prepared.passed)
            self._cameras[stream].forget_material(self._command.window - 1)
        self._prepared = {}

    def of(self, camera: EmulatedCamera, window: int, now_us: int) -> StreamPreparation:
        """Returns the inputs of preparing a camera's window."""
        return StreamPreparation(
            camera.settings,
            camera.inference.material(window - 1, now_us),
            camera.inference.classifier,
            self._golden,
            exemplars=camera.memory.size,
            golden_gpu_s=partial(golden_gpu_s, self._golden, self._card),
            look_gpu_s=self._card.forward_gpu_s(1, camera.settings.side),
            passed=ActivationCache(),
        )

    def keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        """Stores labels as the newest of a stream."""
        camera = self._cameras[stream]
        camera.labels = labels
        camera.models.add_labels(labels)

    def passed_by(self, stream: StreamId, model: EdgeModel) -> ActivationCache | None:
        """Returns the micro-profiler's frozen-block outputs if they are of this same model object."""
        whose, passed = self._passed.get(stream, (None, None))
        return passed if whose is model else None


def golden_gpu_s(golden: Labels, card: CostCard, questions: Sequence[Question]) -> float:
    """Returns the golden model's GPU-seconds for some questions, by a cost card."""
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
