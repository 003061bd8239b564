"""Preparation of a window of one stream: labels, λ profile and γ micro-profile (paper §4.3)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.host import TYPICAL_OBJECTS, StreamCosts
from ekya.core.profile import Family, FamilyCurve
from ekya.core.view import InferenceOption
from ekya.core.weights import Compared
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.precision import training_precision
from ekya.models.edge.predictor import accuracy
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import Labels
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.label_weights import few_of_each
from ekya.models.training.labelled import LabelledCrops, class_mix_weights, concatenate
from ekya.models.training.microprofile import MicroProfile, way_to_try
from ekya.models.training.trainer import Compute
from ekya.pipeline.collector import CollectedFrame, WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import (
    LABELLED_PICTURES,
    Selection,
    StreamLabels,
    choose,
    choose_pictures,
    label_window,
)
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.profiling.gate import LEAST_OBJECTS, NEVER_BACK, why_back
from ekya.planning.profiling.inference_profile import BurstFrame, inference_options
from ekya.planning.profiling.label_policy import LABEL_POLICIES, POOL, SAMPLE_PART, affordable

_LOG = logging.getLogger(__name__)

BURST_OBJECTS = 6
"""Objects tracked through a burst: a few suffice to show how fast things move."""

Scope = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, eq=False)
class StreamPreparation:
    """Inputs of a preparation: the window's material, and the model that serves.

    Attributes:
        exemplars: crops of earlier windows that a retraining would mix in.
        golden_gpu_s: expected GPU-seconds of the golden model for some questions; used only with a budget.
        crop_gpu_s: GPU-seconds of the serving model for one crop; used only with a budget.
        earlier: the model that served when labels were taken before, if another one serves now.
        passed: stores forward passes of the model on tried crops, for the retraining; None to drop them.
    """

    settings: PreparationSettings
    material: WindowMaterial
    serving: Classifier
    golden: Labels
    exemplars: int = 0
    golden_gpu_s: Callable[[Sequence[Question]], float] = field(default=lambda _: 0.0)
    crop_gpu_s: float = 0.0
    earlier: Classifier | None = None
    passed: ActivationCache | None = None

    @property
    def model(self) -> EdgeModel:
        """The model that serves."""
        return self.serving.model

    def select(self) -> Selection:
        """Returns the objects that `label` asks about: the policy's choice within the budget.

        The budget includes the cost of the serving model for the choice.
        """
        settings, material = self.settings, self.material
        policy, most = LABEL_POLICIES[settings.label_policy], settings.labels_per_window
        one_gpu_s = self._one_gpu_s(material.sample)
        left_gpu_s = None if settings.label_gpu_s is None else SAMPLE_PART * settings.label_gpu_s
        crop_gpu_s = self.crop_gpu_s if policy.asks_model else 0.0
        if self.golden.background is None:
            most = affordable(left_gpu_s, one_gpu_s + POOL * crop_gpu_s, most)
            self._warn_if_none(most, one_gpu_s + POOL * crop_gpu_s)
            return choose(material, most, settings.seed, policy, self.serving.predictor.embed)
        pool = POOL * most
        if left_gpu_s is not None:
            # Pictures cost more than crops in the serving model, which may use half of the budget.
            pool = affordable(left_gpu_s / 2, crop_gpu_s, pool)
            left_gpu_s -= pool * crop_gpu_s
        pictures = affordable(left_gpu_s, one_gpu_s, LABELLED_PICTURES)
        self._warn_if_none(pictures, one_gpu_s)
        return choose_pictures(material, pictures, settings.seed, policy, self.serving.predictor.embed, pool)

    def burst_questions(self) -> list[Question]:
        """Returns the questions of `label_burst` to the golden model."""
        return [frame.question for frame in self._asked_burst()]

    def label_burst(self, scope: Scope = nullcontext) -> list[tuple[CollectedFrame, NDArray[np.int64]]]:
        """Labels a few objects through consecutive frames; returns an empty list if there are none."""
        frames = self._asked_burst()
        if not any(len(frame.boxes) for frame in frames):
            return []
        with scope():
            classes = self.golden.label(self.burst_questions())
        named = [np.flatnonzero((of >= 0) & (of != self.golden.background)) for of in classes]
        followed = self._followed([frame.tracks[rows] for frame, rows in zip(frames, named, strict=True)])
        burst = []
        for frame, of, rows in zip(frames, classes, named, strict=True):
            kept = rows[np.isin(frame.tracks[rows], followed)]
            burst.append((frame.take(kept), of[kept]))
        return burst

    def label(self, selection: Selection | None = None) -> StreamLabels:
        """Labels a sample of the window: ``selection``, or what ``select`` returns."""
        settings = self.settings
        return label_window(
            self.material,
            selection or self.select(),
            self.golden,
            settings.side,
            settings.labels_per_window,
            settings.seed,
        )

    def compare(self, labels: StreamLabels) -> Compared | None:
        """Compares the serving weights with the earlier ones, on the newest picture of each labelled object.

        None where it could not lead to a roll-back: the same weights, too few objects, or a margin that is
        never exceeded.
        """
        if self.earlier is None or self.settings.roll_back_margin >= NEVER_BACK:
            return None
        labelled = concatenate([labels.training.examples, labels.validation.examples])
        objects = labelled.take(np.flatnonzero(labelled.classes != self.golden.background))
        if len(objects) < LEAST_OBJECTS:
            return None
        newest = objects.take(few_of_each(objects.classes, objects.tracks, 1))
        if len(newest) < LEAST_OBJECTS:
            return None
        return Compared(accuracy(self.serving, newest), accuracy(self.earlier, newest), len(newest))

    def settled(self, compared: Compared | None) -> "StreamPreparation":
        """Returns the preparation with the earlier weights if the shadow gate rolls back, else unchanged."""
        if self.earlier is None or compared is None or not why_back(compared, self.settings.roll_back_margin):
            return self
        return replace(self, serving=self.earlier, earlier=None)

    def serving_accuracy(self, labels: StreamLabels) -> float:
        """Returns the serving model's accuracy on the validation part; 0.0 if that is empty."""
        training, validation = labels.training.examples, labels.validation.examples
        return accuracy(
            self.serving,
            validation,
            class_mix_weights(training.classes, validation.classes),
        )

    def outputs(self, labels: StreamLabels) -> tuple[str, ...]:
        """Returns the classes of a retrained model: those it knows, then new ones in the labels."""
        return outputs_of(self.model, labels, self.settings.classes)

    def frame_gpu_s(self, typical: StreamCosts) -> dict[int, float]:
        """Scales the GPU-seconds of a frame with ``TYPICAL_OBJECTS`` to the frames of this window."""
        return typical.at_crowd(self.material.mean_objects / TYPICAL_OBJECTS)

    def profile_inference(
        self,
        configs: Sequence[InferenceConfig],
        frame_gpu_s: Mapping[int, float],
        labelled: Sequence[tuple[CollectedFrame, NDArray[np.int64]]],
        scope: Scope = nullcontext,
    ) -> tuple[InferenceOption, ...]:
        """Returns each λ's relative accuracy on a labelled burst, and the share it needs (paper §3.1)."""
        burst: list[BurstFrame] = []
        if labelled:
            crops = [frame.crops for frame, _ in labelled]
            ends = np.cumsum([len(cut) for cut in crops])[:-1]
            answers = {}
            for resolution in sorted({config.resolution for config in configs}):
                with scope():
                    classes, _ = self.serving.predict(np.concatenate(crops), resolution)
                answers[resolution] = np.split(classes, ends)
            burst = [
                BurstFrame(frame.boxes, truth, {side: of[at] for side, of in answers.items()})
                for at, (frame, truth) in enumerate(labelled)
            ]
        return inference_options(
            configs, burst, frame_gpu_s, self.settings.fps, self.settings.inference_speed
        )

    def trial(
        self,
        family: Family,
        labels: StreamLabels,
        clock: Callable[[], float],
        scope: Scope = nullcontext,
        first: bool = True,
    ) -> MicroProfile:
        """Returns a micro-profile of one family, ready to run (paper §4.3).

        ``first`` is True for the first one of the stream's window. Exemplars are left out: they would add
        half of the cost, and the old scene says little about the new one.
        """
        fleet, background = self.settings.classes, self.golden.background
        classes = self.outputs(labels)
        known = background is not None and fleet[background] in classes
        return MicroProfile(
            start=self.model,
            way=way_to_try(
                self.settings.profiler, family.trainable_blocks, len(labels.validation.examples), first
            ),
            family=RetrainConfig(1, family.batch_size, family.head_width, family.trainable_blocks, 1.0),
            training=in_classes(labels.training.examples, classes, fleet),
            validation=in_classes(labels.validation.examples, classes, fleet),
            exemplars=self.exemplars,
            classes=classes,
            background=classes.index(fleet[background]) if background is not None and known else None,
            seed=self.settings.seed,
            clock=clock,
            compute=Compute(self.settings.device, scope, training_precision(self.settings.device, scope)),
            passed=self.passed,
        )

    def _warn_if_none(self, affordable_questions: int, one_gpu_s: float) -> None:
        """Logs a warning if a budget allows no labels; one question takes ``one_gpu_s``."""
        if not affordable_questions:
            _LOG.warning(
                "window %d: golden.gpu_s_per_window allows no label, since one takes about %.2g GPU-seconds; "
                "allow a multiple of %.2g",
                self.material.window,
                one_gpu_s,
                one_gpu_s / SAMPLE_PART,
            )

    def _one_gpu_s(self, frames: Sequence[CollectedFrame]) -> float:
        """Returns the golden model's GPU-seconds for one object, or one new picture; 0 if there are none."""
        unseen = [frame for frame in frames if len(frame.boxes) and frame.found is None]
        if self.settings.label_gpu_s is None or not unseen:
            return 0.0
        return self.golden_gpu_s([unseen[0].take(np.zeros(1, np.int64)).question])

    def _asked_burst(self) -> list[CollectedFrame]:
        """Returns the burst to label: only a few objects, if the golden model is charged per box.

        A budget shortens it to the part that is not reserved for the sample.
        """
        frames, budget_gpu_s = longest_run(self.material.burst), self.settings.label_gpu_s
        one_gpu_s = self._one_gpu_s(frames)
        left_gpu_s = None if budget_gpu_s is None else (1.0 - SAMPLE_PART) * budget_gpu_s
        if self.golden.background is not None:
            unseen = np.cumsum([frame.found is None for frame in frames])
            most = affordable(left_gpu_s, one_gpu_s, len(frames))
            return [frame for frame, count in zip(frames, unseen.tolist(), strict=True) if count <= most]
        followed = self._followed([frame.tracks for frame in frames])
        most = affordable(left_gpu_s, one_gpu_s, len(followed) * len(frames))
        for count in range(len(followed), -1, -1):
            kept = [frame.take(np.flatnonzero(np.isin(frame.tracks, followed[:count]))) for frame in frames]
            if sum(len(frame.boxes) for frame in kept) <= most or count == 0:
                break
        return kept

    def _followed(self, tracks: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Returns a few random objects of a burst, by track."""
        seen = np.unique(np.concatenate([np.zeros(0, np.int64), *tracks]))
        rng = np.random.default_rng((self.settings.seed, self.material.window))
        return rng.permutation(seen)[:BURST_OBJECTS]


def outputs_of(model: EdgeModel, labels: StreamLabels, fleet: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the classes of a model retrained on these labels: known ones, then new ones as in the fleet."""
    if model.detector is not None:
        return model.classes
    seen = np.unique(np.concatenate([labels.training.examples.labels(), labels.validation.examples.labels()]))
    new = tuple(fleet[index] for index in seen if fleet[index] not in model.classes)
    return model.classes + new


def in_classes(examples: E, classes: tuple[str, ...], fleet: tuple[str, ...]) -> E:
    """Converts labels that index the fleet's classes to labels that index ``classes``; frames keep theirs."""
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
    return ExemplarMemory(memory.budget_crops, ours.take(np.flatnonzero(ours.classes >= 0)))


def longest_run(frames: Sequence[CollectedFrame]) -> list[CollectedFrame]:
    """Returns the longest stretch of consecutive frames; a camera may have skipped some in between."""
    best: list[CollectedFrame] = []
    run: list[CollectedFrame] = []
    for frame in frames:
        if run and frame.frame != run[-1].frame + 1:
            run = []
        run.append(frame)
        if len(run) > len(best):
            best = list(run)
    return best


def counted_curve(trial: MicroProfile, card: CostCard) -> tuple[FamilyCurve, float]:
    """Runs a trial; returns its curve with retraining costs by the card, and the trial's GPU-seconds."""
    curve = trial.priced(trial.run(), card.retraining_gpu_s)
    prepare_gpu_s, epoch_gpu_s = card.retraining_gpu_s(trial.cost())
    return curve, prepare_gpu_s + trial.epochs * epoch_gpu_s
