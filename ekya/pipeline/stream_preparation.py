"""Preparation of a window of one stream: labels, λ profile and γ micro-profile (paper §4.3)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, FamilyCurve
from ekya.core.weights import Compared
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.model import EdgeModel
from ekya.models.golden.detections import Question
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.label_weights import tried_of, weighed_now
from ekya.models.training.labelled import E, Examples, LabelledCrops
from ekya.models.training.microprofile import SUBSET_EPOCHS, MicroProfile
from ekya.models.training.trainer import Compute, Retraining, RetrainingData, training_precision
from ekya.pipeline.costs import CostCard
from ekya.pipeline.crop_labelling import CropLabelling
from ekya.pipeline.device_scopes import UNCHARGED, DeviceScopes
from ekya.pipeline.frame_labelling import FrameLabelling
from ekya.pipeline.inference import Serving, judged_by
from ekya.pipeline.labelling import Asked, Labelling, LabellingInputs
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.adaptation.shadow_gate import NEVER_BACK, why_back
from ekya.planning.profiling.inference_profile import BurstFrame
from ekya.streams.ingest.motion import BoxFlow

LABELLINGS: Mapping[Task, Labelling] = {Task.CLASSIFY: CropLabelling(), Task.DETECT: FrameLabelling()}


@dataclass(frozen=True, slots=True, eq=False)
class StreamPreparation(LabellingInputs):
    """Inputs of a preparation: the window's material, and the model that serves.

    Attributes:
        exemplars: crops of earlier windows that a retraining would mix in.
        earlier: the model that served when labels were taken before, if another one serves now.
    """

    exemplars: int = 0
    earlier: Serving | None = None

    @property
    def model(self) -> EdgeModel:
        """The model that serves."""
        return self.serving.model

    @property
    def _labelling(self) -> Labelling:
        return LABELLINGS[self.settings.task]

    def select(self) -> Asked:
        """Returns what ``label`` asks about: a choice within the budget."""
        asked: Asked = self._labelling.select(self)
        return asked

    def label(self, asked: Asked | None = None) -> StreamLabels:
        """Labels a sample of the window: ``asked``, or what ``select`` returns."""
        return self._labelling.label(self, asked or self.select())

    def images_to_check_teacher(self, labels: StreamLabels) -> int:
        """Returns the number of images that ``check_teacher`` analyses; 0 if these labels can raise none."""
        return self._labelling.images_to_check_teacher(labels)

    def check_teacher(self, labels: StreamLabels) -> str | None:
        """Returns a warning if the golden model seems to be worse than the serving one; one pass of it."""
        return self._labelling.check_teacher(self, labels)

    def burst_questions(self) -> list[Question]:
        """Returns the questions of ``burst`` to the golden model."""
        return self._labelling.burst_questions(self)

    def burst(self, configs: Sequence[InferenceConfig], scopes: DeviceScopes = UNCHARGED) -> list[BurstFrame]:
        """Labels consecutive frames, and analyses them at the resolution of each λ; empty without objects."""
        return self._labelling.burst(self, configs, scopes)

    def compare(self, labels: StreamLabels) -> Compared | None:
        """Compares the serving weights with the earlier ones on the labels.

        None where it could not lead to a roll-back: the same weights, too few objects, or a margin that is
        never exceeded.
        """
        if self.earlier is None or self.settings.roll_back_margin >= NEVER_BACK:
            return None
        shown = self._labelling.to_compare(self, labels)
        if shown is None:
            return None
        newest, objects = shown
        return Compared(_right(self.serving, newest), _right(self.earlier, newest), objects)

    def compared_images(self, labels: StreamLabels, compared: Compared) -> int:
        """Returns the number of images that each model analysed for what ``compare`` returned."""
        return self._labelling.compared_images(labels, compared)

    def after_rollback(self, compared: Compared | None) -> "StreamPreparation":
        """Returns the preparation with the earlier weights if the shadow gate rolls back, else unchanged."""
        if self.earlier is None or compared is None or not why_back(compared, self.settings.roll_back_margin):
            return self
        return replace(self, serving=self.earlier, earlier=None)

    def serving_accuracy(self, labels: StreamLabels) -> float:
        """Returns the serving model's accuracy on the validation part; 0.0 if that is empty."""
        training, validation = labels.training.examples, labels.validation.examples
        if not len(validation):
            return 0.0
        return judged_by(self.serving, validation).accuracy(validation.mix_weights(training))

    def accuracy_now(self, examples: Examples) -> float:
        """Returns the serving model's accuracy on what examples show in the end; see ``label_weights``.

        Labels of a scene that is new since a time show that scene alone, so none of them counts more.
        """
        tried, changes = tried_of(examples), self.material.since_us is None
        judged = judged_by(self.serving, examples.select_rows(tried))
        return judged.accuracy(weighed_now(examples, tried, judged, self.golden.background, changes))

    def outputs(self, labels: StreamLabels) -> tuple[str, ...]:
        """Returns the classes of a retrained model: those it knows, then new ones in the labels."""
        return outputs_of(self.model, labels, self.settings.classes)

    def images_in(self, burst: Sequence[BurstFrame]) -> int:
        """Returns the number of images that the model analyses for a burst at one resolution."""
        detects = self.settings.task is Task.DETECT
        return len(burst) if detects else sum(len(frame.labels) for frame in burst)

    def flow_operations(self, burst: Sequence[BurstFrame]) -> int:
        """Returns the operations with which objects were followed through a burst."""
        followed = [len(boxes) for frame in burst for boxes, _ in frame.followed]
        return sum(
            BoxFlow().count_operations(self.material.burst[0].picture.shape, count) for count in followed
        )

    def trial(
        self,
        family: Family,
        labels: StreamLabels,
        clock: Callable[[], float],
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> MicroProfile:
        """Returns a micro-profile of one family, ready to run (paper §4.3).

        Exemplars are left out: they would add half of the cost, and the old scene says little about the new
        one.
        """
        fleet, classes = self.settings.classes, self.outputs(labels)
        return MicroProfile(
            start=self.model,
            family=RetrainConfig(1, family.batch_size, family.head_width, family.trainable_blocks, 1.0),
            training=in_classes(labels.training.examples, classes, fleet),
            validation=in_classes(labels.validation.examples, classes, fleet),
            pooled=None if labels.pooled is None else in_classes(labels.pooled, classes, fleet),
            exemplars=self.exemplars,
            classes=classes,
            seed=self.settings.seed,
            clock=clock,
            compute=Compute(self.settings.device, scope, training_precision(self.settings.device, scope)),
        )


def _right(of: Serving, examples: Examples) -> float:
    """Returns a model's accuracy on examples that all count equally."""
    return judged_by(of, examples).accuracy(np.ones(len(examples)))


def outputs_of(model: EdgeModel, labels: StreamLabels, fleet: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the classes of a model retrained on these labels: known ones, then new ones as in the fleet."""
    if model.detector is not None:
        return model.classes
    parts = [
        labels.training.examples,
        labels.validation.examples,
        *([labels.pooled] if labels.pooled else []),
    ]
    seen = np.unique(np.concatenate([part.labels() for part in parts]))
    new = tuple(fleet[index] for index in seen if fleet[index] not in model.classes)
    return model.classes + new


def in_classes(examples: E, classes: tuple[str, ...], fleet: tuple[str, ...]) -> E:
    """Converts labels of crops, which index the fleet's classes, to labels that index ``classes``."""
    if not isinstance(examples, LabelledCrops):
        return examples
    index = np.array([classes.index(name) if name in classes else -1 for name in fleet], np.int64)
    return replace(examples, classes=index[examples.classes])


def memory_in_classes(
    memory: ExemplarMemory, classes: tuple[str, ...], fleet: tuple[str, ...]
) -> ExemplarMemory:
    """Converts the memory's labels from the fleet's classes to ``classes``.

    Exemplars of other classes are left out: a class may be learned in a retraining that was not better than
    the serving model, and so never be served.
    """
    kept = memory.exemplars()
    if not isinstance(kept, LabelledCrops):  # frames name their objects by the fleet's classes
        return memory
    ours = in_classes(kept, classes, fleet)
    return ExemplarMemory(memory.budget, ours.select_rows(np.flatnonzero(ours.classes >= 0)))


def counted_curve(trial: MicroProfile, card: CostCard) -> tuple[FamilyCurve, float]:
    """Runs a trial; returns its curve with retraining costs by the card, and the trial's GPU-seconds."""
    curve = trial.priced(trial.run(), card.retraining_gpu_s)
    prepare_gpu_s, epoch_gpu_s = card.retraining_gpu_s(trial.cost())
    return curve, prepare_gpu_s + SUBSET_EPOCHS * epoch_gpu_s


def data_of(
    start: EdgeModel,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
) -> RetrainingData:
    """Returns the data of ``retraining_of`` for the same arguments."""
    fleet = settings.classes
    classes = outputs_of(start, labels, fleet)
    pooled = labels.pooled
    return RetrainingData(
        in_classes(labels.training.examples, classes, fleet),
        in_classes(labels.validation.examples, classes, fleet),
        classes,
        memory_in_classes(memory, classes, fleet),
        settings.seed + window,
        in_classes(pooled, classes, fleet) if pooled is not None and len(pooled) else None,
    )


def retraining_of(
    start: EdgeModel,
    config: RetrainConfig,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
    scope: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Retraining:
    """Returns the retraining that every world runs; the same arguments train the same weights.

    Args:
        start: the model that serves.
        config: γ.
        labels: of the window before; their classes index the fleet's.
        memory: exemplars of earlier windows.
        settings: of the stream.
        window: in which it runs.
        scope: context of every batch.
    """
    data = data_of(start, labels, memory, settings, window)
    compute = Compute(settings.device, scope, training_precision(settings.device, scope))
    return Retraining(start, config, data, compute)
