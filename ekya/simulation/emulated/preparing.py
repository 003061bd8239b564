"""Labelling and profiling on virtual time, in the order of `planning.profiling.preparation_steps`."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from ekya.core.commands import BeginPreparation, PrepareStream
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.events import (
    Event,
    InferenceProfiled,
    LabelsReady,
    MemoryShort,
    ProfileReady,
    Warned,
)
from ekya.core.gpus import DidNotFit
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.core.weights import WHOLE, Compared, Dose, Probe
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import Labels, calls_for
from ekya.models.training.activation_cache import ActivationCache
from ekya.pipeline.costs import CostCard
from ekya.pipeline.golden_inference import TYPICAL_QUESTION
from ekya.pipeline.inference import serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.pooled_labels import LabelPool, judge_pooled
from ekya.pipeline.stream_preparation import Offer, OtherModel, StreamPreparation, counted_curve
from ekya.pipeline.zoo_folder import ZooFolder
from ekya.planning.adaptation.kept_models import should_try
from ekya.planning.preparation.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    PoolStep,
    TrialStep,
    preparation_steps,
)
from ekya.planning.profiling.inference_profile import sides_of
from ekya.simulation.emulated.camera import EmulatedCamera

_LOG = logging.getLogger(__name__)

_PROFILER = "micro-profiler"
"""Source of its warnings, named as in a live run."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was executed and is still to be charged.

    Attributes:
        finished: makes its event from the time at which it ended.
    """

    gpu_s: float
    finished: Callable[[int], Event]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledStream:
    """A stream's new labels.

    Attributes:
        prepared: the preparation, with the weights that serve after the shadow gate.
        labels: the labels.
        accuracy: of these weights on the validation part.
        gpu_s, golden_gpu_s: cost, and the golden model's part of it.
        compared: what the shadow gate compared.
        golden_calls: pictures that the golden model analysed.
        probe: what a later dose says of these weights.
        warning: about the golden model, from the first labels of a stream.
    """

    prepared: StreamPreparation
    labels: StreamLabels
    accuracy: float
    gpu_s: float
    golden_gpu_s: float
    compared: Compared | None
    golden_calls: int
    probe: Probe | None = None
    warning: str | None = None

    def event(self, stream: StreamId, t_us: int) -> LabelsReady:
        """Returns the event of these labels."""
        prepared, labels = self.prepared, self.labels
        return LabelsReady(
            t_us=t_us,
            stream=stream,
            window=prepared.material.used_in,
            training_crops=len(labels.training.examples),
            validation_crops=len(labels.validation.examples),
            serving_accuracy=self.accuracy,
            new_classes=len(prepared.outputs(labels)) > len(prepared.model.classes),
            gpu_s=self.gpu_s,
            class_histogram=labels.histogram(len(prepared.settings.classes), prepared.golden.background),
            golden_gpu_s=self.golden_gpu_s,
            compared=self.compared,
            golden_calls=self.golden_calls,
            objects=labels.objects_in_frames,
            since_us=prepared.material.since_us,
            picture=prepared.material.picture,
            probe=self.probe,
        )


def label_stream(prepared: StreamPreparation, card: CostCard) -> LabelledStream:
    """Labels a window of a stream and compares its newest weights with the earlier ones."""
    side = prepared.settings.side
    selection = prepared.select()
    labels = prepared.label(selection)
    golden_s = golden_gpu_s(prepared.golden, card, selection.questions)
    gpu_s = golden_s + card.forward_gpu_s(len(labels.validation.examples), side)
    compared = prepared.compare(labels)
    if compared is not None:
        gpu_s += card.forward_gpu_s(2 * prepared.compared_images(labels, compared), side)
    settled = replace(prepared.settled(compared), earlier=None)
    probe = settled.probe(labels)
    if probe is not None:
        gpu_s += card.forward_gpu_s(labels.count, side)
    calls, accuracy = calls_for(prepared.golden, selection.questions), settled.serving_accuracy(labels)
    return LabelledStream(settled, labels, accuracy, gpu_s, golden_s, compared, calls, probe)


def with_teacher_checked(made: LabelledStream, stream: StreamId, card: CostCard) -> LabelledStream:
    """Returns a stream's first labels after a check of the golden model, with its cost and its warning."""
    prepared, labels = made.prepared, made.labels
    gpu_s = made.gpu_s + card.forward_gpu_s(prepared.images_to_check_teacher(labels), prepared.settings.side)
    warning = prepared.check_teacher(labels)
    if warning is None:
        return replace(made, gpu_s=gpu_s)
    text = f"{stream}: {warning}"
    _LOG.warning("%s", text)
    return replace(made, gpu_s=gpu_s, warning=text)


def profile_inference(
    prepared: StreamPreparation,
    configs: Sequence[InferenceConfig],
    card: CostCard,
    proposer_operations: int,
) -> tuple[tuple[InferenceOption, ...], float, float, int]:
    """Returns the profile of Λ, its GPU-seconds, the golden model's part of them, and that model's calls."""
    objects = prepared.material.mean_objects
    sides = sides_of(configs)
    frame_gpu_s = {side: card.frame_gpu_s(objects, side, proposer_operations) for side in sides}
    burst = prepared.burst(configs)
    following_gpu_s: dict[int, float] = {}
    if any(config.by_golden for config in configs):
        boxes = mean(len(frame.labels) for frame in burst) if burst else TYPICAL_OBJECTS
        following_gpu_s[GOLDEN_RESOLUTION] = card.following_gpu_s(boxes)
        frame_gpu_s[GOLDEN_RESOLUTION] = golden_gpu_s(prepared.golden, card, [TYPICAL_QUESTION])
    options = prepared.profile_inference(configs, frame_gpu_s, burst, following_gpu_s)
    questions = prepared.burst_questions()
    golden_s = golden_gpu_s(prepared.golden, card, questions)
    gpu_s = golden_s + card.proposing_gpu_s(prepared.flow_operations(burst))
    for resolution in sides:
        gpu_s += card.forward_gpu_s(prepared.images_in(burst), resolution)
    return options, gpu_s, golden_s, calls_for(prepared.golden, questions)


class PreparingWindows:
    """Preparation of one window after another; keeps from the last one what a retraining needs.

    Args:
        cameras: by stream.
        golden: labels samples.
        card: costs of all work.
        proposer_operations: counted operations of proposing objects in one frame.
        zoo: of retrained models, if they are kept.

    Attributes:
        window: that is or was prepared last.
    """

    def __init__(
        self,
        cameras: Mapping[StreamId, EmulatedCamera],
        golden: Labels,
        card: CostCard,
        proposer_operations: int,
        zoo: ZooFolder | None = None,
    ) -> None:
        self._cameras, self._golden, self._card = cameras, golden, card
        self._proposer_operations = proposer_operations
        self._zoo = zoo
        self.window = 0
        self._asked: dict[StreamId, PrepareStream] = {}
        self._teacher_checked: set[StreamId] = set()
        self._prepared: dict[StreamId, StreamPreparation] = {}
        self._offered_models: dict[StreamId, EdgeModel] = {}
        self._alone: dict[StreamId, FamilyCurve] = {}
        self._passed: dict[StreamId, tuple[EdgeModel, ActivationCache]] = {}
        self._pool = LabelPool()

    def begin(self, command: BeginPreparation, now_us: int) -> Iterator[Step]:
        """Starts a preparation, which takes new labels; returns its steps, executed when requested."""
        self.window, self._prepared, self._offered_models, self._alone = command.window, {}, {}, {}
        self._asked = {asked.stream: asked for asked in command.streams}
        if command.round == 0:
            self._passed = {}
        for asked in command.streams:
            camera = self._cameras[asked.stream]
            if asked.since_us is None:
                camera.labels = None
            camera.judge()
            prepared = self.of(camera, command.window, now_us, asked.since_us, asked.dose)
            settings = prepared.settings.under(command.budget)
            self._prepared[asked.stream] = replace(prepared, settings=settings)
        return self._steps(command)

    def end(self) -> None:
        """Ends the preparation and frees its data, except outputs of frozen blocks for retrainings."""
        for stream, prepared in self._prepared.items():
            if prepared.passed is not None:
                self._passed[stream] = (prepared.model, prepared.passed)
            self._cameras[stream].forget_material(self.window - 1)
        self._prepared = {}

    def of(
        self,
        camera: EmulatedCamera,
        window: int,
        now_us: int,
        since_us: int | None = None,
        dose: Dose = WHOLE,
    ) -> StreamPreparation:
        """Returns the inputs of preparing a camera's window, or of labelling it again since a time."""
        return StreamPreparation(
            camera.settings,
            camera.inference.material(window, now_us, since_us, dose),
            camera.inference.serving,
            self._golden,
            exemplars=camera.memory.size,
            golden_gpu_s=partial(golden_gpu_s, self._golden, self._card),
            passed=ActivationCache(),
        )

    def keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        """Stores labels as the newest of a stream."""
        camera = self._cameras[stream]
        self._pool.add(stream, labels)
        camera.labels = labels
        camera.models.add_labels(labels)

    def offered(self, stream: StreamId) -> EdgeModel:
        """Returns a model as it was offered to a stream in the newest preparation."""
        return self._offered_models[stream]

    def passed_by(self, stream: StreamId, model: EdgeModel) -> ActivationCache | None:
        """Returns the micro-profiler's frozen-block outputs if they are of this same model object."""
        whose, passed = self._passed.get(stream, (None, None))
        return passed if whose is model else None

    def _steps(self, command: BeginPreparation) -> Iterator[Step]:
        labelled: dict[StreamId, Labelled] = {}
        for step in preparation_steps(command.streams, labelled):
            match step:
                case LabelStep():
                    made = self._label(step.stream)
                    labelled[step.stream] = Labelled(made.accuracy, made.labels.can_train)
                    yield Step(made.gpu_s, partial(made.event, step.stream))
                    if made.warning is not None:
                        yield Step(0.0, partial(Warned, source=_PROFILER, text=made.warning))
                    offer = self._offer(step.stream, made)
                    if offer is not None:
                        if self._prepared[step.stream] is not made.prepared:
                            labelled[step.stream] = Labelled(offer.accuracy, made.labels.can_train)
                        yield self._offered(step.stream, offer)
                case InferenceStep():
                    yield self._profile_inference(step)
                case TrialStep():
                    yield self._micro_profile(step)
                case PoolStep():
                    yield from self._try_pooled(step)

    def _label(self, stream: StreamId) -> LabelledStream:
        prepared, earlier = self._prepared[stream], self._cameras[stream].earlier
        if earlier is not None:
            # Loaded one at a time: a model for prediction is as large as one for training.
            prepared = replace(prepared, earlier=serving(earlier.model, prepared.settings.classes))
        made = label_stream(prepared, self._card)
        if stream not in self._teacher_checked and made.prepared.images_to_check_teacher(made.labels):
            self._teacher_checked.add(stream)
            made = with_teacher_checked(made, stream, self._card)
        self._prepared[stream] = made.prepared
        self.keep_labels(stream, made.labels)
        return made

    def _offer(self, stream: StreamId, made: LabelledStream) -> Offer | None:
        """Tries kept models on new labels, and prepares the best instead if it is to serve."""
        offer = None if self._zoo is None else self._offer_kept(self._zoo, stream, made)
        if offer is not None:
            self._offered_models[stream] = offer.other.serving.model
        self._prepared[stream] = self._prepared[stream].adopting(offer)
        return offer

    def _offer_kept(self, zoo: ZooFolder, stream: StreamId, made: LabelledStream) -> Offer | None:
        """Tries kept models on new labels; those that cannot be read are left out."""
        prepared, asked = made.prepared, self._asked[stream]
        if not should_try(made.accuracy, prepared.material.since_us):
            return None
        models = []
        for number in asked.candidates:
            kept, weights = zoo.model(number), zoo.read(number)
            if kept is not None and weights is not None:
                model = serving(from_bytes(weights), prepared.settings.classes)
                models.append(OtherModel(kept, model))
        serves = None if asked.kept is None else zoo.model(asked.kept)
        return prepared.offer(made.labels, models, serves)

    def _offered(self, stream: StreamId, offer: Offer) -> Step:
        window, side = self.window, self._prepared[stream].settings.side
        gpu_s = self._card.forward_gpu_s(offer.tried * offer.images, side)
        return Step(gpu_s, lambda t_us: offer.event(t_us, stream, window, gpu_s))

    def _profile_inference(self, step: InferenceStep) -> Step:
        stream, window, prepared = step.stream, self.window, self._prepared[step.stream]
        profiled = profile_inference(prepared, step.configs, self._card, self._proposer_operations)
        return Step(profiled[1], lambda t_us: InferenceProfiled(t_us, stream, window, *profiled))

    def _micro_profile(self, step: TrialStep) -> Step:
        stream, window, labels = step.stream, self.window, self._cameras[step.stream].labels
        assert labels is not None, "the label step comes before"
        try:
            curve, gpu_s = self._tried(step, labels)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            what, reason = DidNotFit(step.family, 0.0), f"{type(error).__name__}: {error}"
            return Step(0.0, lambda t_us: MemoryShort(t_us, stream, window, what, reason))
        if step.first:
            self._alone[stream] = curve
        return Step(gpu_s, lambda t_us: ProfileReady(t_us, stream, window, curve, gpu_s))

    def _try_pooled(self, step: PoolStep) -> Iterator[Step]:
        """Tries the first family again if there are pooled labels."""
        stream, window = step.stream, self.window
        both, streams = self._pool.beside(stream, step.scenes)
        if both.pooled is None or stream not in self._alone:
            return
        alone = self._alone[stream]
        try:
            again, gpu_s = self._tried(TrialStep(stream, step.family, first=True), both)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _LOG.warning("%s: pooled labels do not fit into the GPU's memory: %s", stream, error)
            return
        pooled, curve = judge_pooled(both, streams, alone, again)

        def finished(t_us: int) -> ProfileReady:
            if pooled.learns:
                self._cameras[stream].labels = both
            return ProfileReady(t_us, stream, window, curve, gpu_s, pooled)

        yield Step(gpu_s, finished)

    def _tried(self, step: TrialStep, labels: StreamLabels) -> tuple[FamilyCurve, float]:
        """Returns the curve of a family on these labels, and the GPU-seconds of the trial."""
        trial = self._prepared[step.stream].trial(step.family, labels, clock=float, first=step.first)
        return counted_curve(trial, self._card)


def golden_gpu_s(golden: Labels, card: CostCard, questions: Sequence[Question]) -> float:
    """Returns the golden model's GPU-seconds for some questions, by a cost card."""
    return card.labelling_gpu_s(golden.operations(questions), golden.finds)
