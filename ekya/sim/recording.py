"""One stream's part of a trace: every γ run to its end, on the crops and labels that a run would see.

A run of the emulated world with the same fleet and seed cuts the same crops, labels the same objects, parts
them alike and trains with the same seeds; so a window that is played over the trace can be compared with one
that was run (paper §6.1).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekya.control.step import NOTHING_RIGHT
from ekya.core.commands import BeginPreparation, PrepareStream
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.events import InferenceProfiled, LabelsReady
from ekya.core.ids import StreamId
from ekya.core.profile import Family, family_of
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.trace import (
    BASE,
    Epoch,
    LeftOut,
    Origin,
    Predicted,
    Start,
    StreamTrace,
    StreamWindow,
    Training,
    Trial,
)
from ekya.core.view import InferenceOption
from ekya.learning.edge import EdgeModel
from ekya.learning.memory import ExemplarMemory
from ekya.learning.operations import retraining_cost
from ekya.learning.shared import SharedTrunk
from ekya.measuring.accuracy import labelled_tracks
from ekya.profiling.estimate import options as estimated_options
from ekya.profiling.inference import inference_options
from ekya.profiling.pruning import ENOUGH_ACCURACY
from ekya.profiling.steps import InferenceStep, LabelStep
from ekya.sim.courses import Course, courses_of
from ekya.sim.examining import Exam, in_fleet, true_options
from ekya.sim.preparing import EmulatedPreparation, golden_gpu_s
from ekya.sim.seen import SeenFrames, SeenWindow
from ekya.workers.costs import CostCard
from ekya.workers.inference import Classifier
from ekya.workers.labels import Labels, StreamLabels
from ekya.workers.preparation import TYPICAL_OBJECTS, PreparationSettings, StreamPreparation, counted_curve
from ekya.workers.retraining import retraining_of

SCORED_PER_S = 4.0
"""Retrained blocks are scored on the objects of so many frames a second, heads alone on those of all."""

_JUDGES = 2
"""Models that show what λ leaves of their accuracy: the youngest."""


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """What all streams are recorded with.

    Attributes:
        retrain_configs, inference_configs: Γ without ∅, and Λ.
        base: the model that every stream begins with.
        golden: labels samples.
        card: what everything costs.
        window_us: length of a window.
        every_start: train from every model that may serve, not only from the youngest of each family.
        told: called after each training, with a word on it.
    """

    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    base: EdgeModel
    golden: Labels
    card: CostCard
    window_us: int
    every_start: bool
    told: Callable[[str], None]

    @property
    def courses(self) -> tuple[Course, ...]:
        """The trainings that Γ takes."""
        return courses_of(self.retrain_configs)

    @property
    def blocks_left(self) -> int:
        """Blocks of a model that some γ trains; the others stay those of the base model."""
        return max(config.trainable_blocks for config in self.retrain_configs)

    @property
    def families(self) -> tuple[Family, ...]:
        """Of Γ, sorted."""
        return tuple(sorted({family_of(config) for config in self.retrain_configs}))

    def trainings(self, windows: int) -> int:
        """How many trainings one stream takes at most."""
        of_each = len(self.families)
        if self.every_start:
            return len(self.courses) * sum(1 + of_each * (window - 1) for window in range(1, windows))
        return len(self.courses) * (1 + (of_each + 1) * (windows - 2))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A model that may serve, and what its stream would remember then.

    Attributes:
        needed: a model was only ever retrained on the way to it where it was not good enough. Baselines
            retrain good ones too.
    """

    origin: Origin
    model: EdgeModel
    memory: ExemplarMemory
    needed: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A training that was recorded, and its best weights."""

    training: Training
    validation_accuracy: float
    model: EdgeModel

    def would_serve(self, serving: float) -> bool:
        """Whether it would in place of a model with this validation accuracy."""
        return self.validation_accuracy >= max(serving, NOTHING_RIGHT)


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    """The weights that would serve so far: of equals the last."""

    epoch: int
    validation_accuracy: float
    model: EdgeModel


@dataclass(frozen=True, slots=True, eq=False)
class _Exams:
    """One window, for models that are asked once and for those of every epoch."""

    whole: Exam
    sampled: Exam


@dataclass(frozen=True, slots=True, eq=False)
class _Labelled:
    """A window's labels and what making them cost."""

    labels: StreamLabels
    gpu_s: float


@dataclass(eq=False)
class StreamRecorder:
    """Records one stream.

    Args:
        stream: which.
        settings: of the stream.
        windows: all that it shows.
        proposer_operations: counted operations of finding the objects of one frame.
        common: what all streams are recorded with.
        also_labelled: further objects that do not count, as a run's labels.
    """

    stream: StreamId
    settings: PreparationSettings
    windows: Sequence[SeenWindow]
    proposer_operations: int
    common: Common
    also_labelled: LabelledBoxes = NO_LABELS
    _candidates: list[_Candidate] = field(init=False, default_factory=list)

    def record(self) -> StreamTrace:
        """The stream's part of the trace."""
        labelled = [None, *(self._label(window) for window in range(1, len(self.windows)))]
        left_out = LabelledBoxes.joined([_boxes_of(labelled), self.also_labelled])
        excluded = self._excluded(left_out)
        exams = [self._exams(seen, of, excluded) for seen, of in zip(self.windows, labelled, strict=True)]
        self._candidates = [_Candidate(BASE, self.common.base, ExemplarMemory(), needed=True)]
        recorded = [self._window(of, exams[window:]) for window, of in enumerate(labelled)]
        return StreamTrace(
            self.stream,
            self.settings.fps,
            tuple(recorded),
            self.windows[-1].part,
            tuple(map(LeftOut, left_out.frame.tolist(), map(tuple, left_out.boxes.tolist()))),
        )

    def _window(self, labelled: _Labelled | None, exams: Sequence[_Exams]) -> StreamWindow:
        """The window of the first of these exams; the others are later ones."""
        exam, serving = exams[0].whole, self._candidates[-1].model
        known = StreamWindow(
            window=exam.window,
            class_histogram=self._histogram(exam.window),
            training_crops=0,
            validation_crops=0,
            labelling_gpu_s=0.0,
            inference_gpu_s=0.0,
            inference=(),
            inference_profiled=self._guessed_options(),
            starts=tuple(Start(of.origin, exam.standing(of.model)) for of in self._candidates),
            trainings=(),
            trials=(),
            objects_by_part=exam.objects_by_part,
        )
        if labelled is not None:
            known = self._prepared(known, labelled, serving)
            if labelled.labels.can_train:
                known = self._trained(known, labelled.labels, exams)
        youngest = [of.model for of in self._candidates[-_JUDGES:]]
        return replace(known, inference=self._true_options(exam.frames, youngest))

    def _prepared(self, known: StreamWindow, labelled: _Labelled, serving: EdgeModel) -> StreamWindow:
        """With what preparing the window costs and shows."""
        labels = labelled.labels
        profiled, gpu_s = self._profile_inference(known.window, serving)
        return replace(
            known,
            training_crops=len(labels.training.crops),
            validation_crops=len(labels.validation.crops),
            labelling_gpu_s=labelled.gpu_s,
            inference_gpu_s=gpu_s,
            inference_profiled=profiled,
        )

    def _trained(self, known: StreamWindow, labels: StreamLabels, exams: Sequence[_Exams]) -> StreamWindow:
        """With every family tried and run from every start; the best weights become candidates."""
        accuracies = {start.origin: start.standing.validation_accuracy for start in known.starts}
        trainings: list[Training] = []
        trials: list[Trial] = []
        following: dict[Origin, _Candidate] = {}
        for start in self._starts():
            if self.common.every_start or start.needed:
                trials += self._trials(known.window, start, labels)
            of_blocks = [exam.sampled for exam in exams]
            of_heads = [exam.whole.of_heads(start.model) for exam in exams]
            serving = accuracies[start.origin]
            for family in self._families(start):
                runs = []
                for course in (course for course in self.common.courses if course.family == family):
                    asked = of_blocks if course.config.trainable_blocks else of_heads
                    runs.append(self._run(course, start, labels, asked))
                    self.common.told(f"{self.stream}, window {known.window}: {course.config.name}")
                trainings += [run.training for run in runs]
                # Validation parts are small and ties frequent; a plan then takes the one with more data.
                best = max(runs, key=lambda run: (run.validation_accuracy, run.training.data_fraction))
                origin, needed = Origin(known.window, family), start.needed and serving < ENOUGH_ACCURACY
                # Of two with one origin, that which more schedulers would have trained.
                wanted = start is self._youngest(family, needed) and (needed or origin not in following)
                if wanted and best.would_serve(serving):
                    memory = start.memory.update(best.model, labels.training.crops)
                    following[origin] = _Candidate(origin, best.model, memory, needed)
        self._candidates += following.values()
        return replace(known, trainings=tuple(trainings), trials=tuple(trials))

    def _starts(self) -> list[_Candidate]:
        """What is trained from: the youngest models of each family, the base model in place of one."""
        if self.common.every_start:
            return list(self._candidates)
        youngest = [
            self._youngest(family, needed) for family in self.common.families for needed in (True, False)
        ]
        return [candidate for candidate in self._candidates if candidate in youngest]

    def _families(self, start: _Candidate) -> tuple[Family, ...]:
        """What is trained from it. Only a baseline retrains good models, and that with one family."""
        own = start.origin.family
        if self.common.every_start or start.needed or own is None:
            return self.common.families
        return (own,)

    def _youngest(self, family: Family, needed: bool) -> _Candidate:
        """The model that was trained with this family whenever it was trained; the base model if never.

        Args:
            family: which.
            needed: trained only where that was needed; otherwise wherever it was possible.
        """
        own = [of for of in self._candidates if of.origin.family == family and (of.needed or not needed)]
        return own[-1] if own else self._candidates[0]

    def _run(self, course: Course, start: _Candidate, labels: StreamLabels, exams: Sequence[Exam]) -> _Run:
        window = exams[0].window
        retraining = retraining_of(start.model, course.config, labels, start.memory, self.settings, window)
        prepare_gpu_s, epoch_gpu_s = self.common.card.retraining_gpu_s(retraining_cost(retraining))
        retraining.prepare()
        epochs: list[Epoch] = []
        best = _Best(0, -1.0, start.model)
        while not retraining.done:
            result = retraining.run_epoch()
            model = retraining.model()
            standing = exams[0].standing(model, result.validation_accuracy)
            epochs.append(Epoch(result.epoch, prepare_gpu_s + result.epoch * epoch_gpu_s, (standing,)))
            if result.validation_accuracy >= best.validation_accuracy:
                best = _Best(result.epoch, result.validation_accuracy, model)
            serving = epochs[best.epoch - 1]
            if result.epoch in course.ends and len(serving.standings) == 1:
                later = tuple(exam.standing(best.model) for exam in exams[1:])
                epochs[best.epoch - 1] = replace(serving, standings=(*serving.standings, *later))
        training = Training(course.family, course.config.data_fraction, start.origin, tuple(epochs))
        return _Run(training, best.validation_accuracy, best.model)

    def _label(self, window: int) -> _Labelled:
        """Labels made when the window opens; which objects they are of depends on no model."""
        made: list[StreamLabels] = []
        preparation = self._emulated(window, self.common.base, lambda _, labels: made.append(labels))
        told = preparation.carry_out(LabelStep(self.stream)).finished(0)
        gpu_s = told.gpu_s if isinstance(told, LabelsReady) else 0.0
        return _Labelled(made[0], gpu_s)

    def _profile_inference(self, window: int, model: EdgeModel) -> tuple[tuple[InferenceOption, ...], float]:
        preparation = self._emulated(window, model, lambda _, labels: None)
        step = InferenceStep(self.stream, self.common.inference_configs)
        told = preparation.carry_out(step).finished(0)
        if not isinstance(told, InferenceProfiled):
            raise TypeError(f"profiling λ told {told}")
        return told.options, told.gpu_s

    def _trials(self, window: int, start: _Candidate, labels: StreamLabels) -> Iterator[Trial]:
        preparation = replace(self._preparation(window, start.model), exemplars=start.memory.size)
        tried = []
        for rank, family in enumerate(self.common.families):
            trial = preparation.trial(family, labels, clock=float, first=rank == 0)
            tried.append(counted_curve(trial, self.common.card))
        promised = estimated_options(
            [curve for curve, _ in tried],
            self.common.retrain_configs,
            len(labels.training.crops),
            validation_crops=len(labels.validation.crops),
            profiler=self.settings.profiler,
        )
        for curve, gpu_s in tried:
            said = tuple(
                Predicted(option.config, option.accuracy_after, option.gpu_s, option.accuracy_sd or None)
                for option in promised
                if family_of(option.config) == curve.family
            )
            yield Trial(curve.family, gpu_s, curve, said, start.origin)

    def _true_options(self, frames: SeenFrames, models: Sequence[EdgeModel]) -> tuple[InferenceOption, ...]:
        common, classes = self.common, self.settings.classes
        answers, frame_gpu_s = {}, {}
        for resolution in sorted({config.resolution for config in common.inference_configs}):
            trunk = self._trunk(frames.crops, resolution)
            answers[resolution] = tuple(in_fleet(trunk.predict(model), model, classes) for model in models)
            frame_gpu_s[resolution] = common.card.frame_gpu_s(
                frames.mean_objects, resolution, self.proposer_operations
            )
        return true_options(
            common.inference_configs,
            frames,
            answers,
            len(classes),
            frame_gpu_s,
            self.settings.fps,
        )

    def _excluded(self, labelled: LabelledBoxes) -> NDArray[np.int64]:
        """Tracks of the objects that labels were taken from: they count in no window."""
        found = [labelled_tracks(labelled, seen.frames.reference) for seen in self.windows]
        return np.unique(np.concatenate(found))

    def _guessed_options(self) -> tuple[InferenceOption, ...]:
        """Λ before anything is profiled, as a run begins with."""
        configs = self.common.inference_configs
        frame_gpu_s = {
            config.resolution: self.common.card.frame_gpu_s(
                TYPICAL_OBJECTS, config.resolution, self.proposer_operations
            )
            for config in configs
        }
        return inference_options(configs, (), frame_gpu_s, self.settings.fps)

    def _histogram(self, window: int) -> tuple[int, ...]:
        seen = self.windows[window].frames.reference.classes
        count = len(self.settings.classes)
        return tuple(np.bincount(seen[(seen >= 0) & (seen < count)], minlength=count).tolist())

    def _exams(self, seen: SeenWindow, labelled: _Labelled | None, excluded: NDArray[np.int64]) -> _Exams:
        frames, side = seen.frames.without(excluded), self.settings.side
        validation = None
        if labelled is not None and len(labelled.labels.validation.crops):
            validation = self._trunk(labelled.labels.validation.crops.crops, side)
        whole = Exam(
            frames=frames,
            trunk=self._trunk(frames.crops, side),
            labels=labelled.labels if labelled else None,
            validation=validation,
            classes=self.settings.classes,
            window_us=self.common.window_us,
        )
        return _Exams(whole, whole.thinned(max(round(self.settings.fps / SCORED_PER_S), 1)))

    def _trunk(self, crops: NDArray[np.uint8], resolution: int) -> SharedTrunk:
        return SharedTrunk.of(self.common.base, self.common.blocks_left, crops, resolution)

    def _emulated(
        self, window: int, model: EdgeModel, keep: Callable[[StreamId, StreamLabels], None]
    ) -> EmulatedPreparation:
        asked = PrepareStream(self.stream, self.common.inference_configs, ())
        return EmulatedPreparation(
            BeginPreparation(window, 0, (asked,)),
            {self.stream: self._preparation(window, model)},
            self.common.card,
            self.proposer_operations,
            keep,
        )

    def _preparation(self, window: int, model: EdgeModel) -> StreamPreparation:
        return StreamPreparation(
            self.settings,
            self.windows[window - 1].material,
            Classifier(model, self.settings.classes),
            self.common.golden,
            golden_gpu_s=partial(golden_gpu_s, self.common.golden, self.common.card),
            look_gpu_s=self.common.card.forward_gpu_s(1, self.settings.side),
        )


def _boxes_of(labelled: Sequence[_Labelled | None]) -> LabelledBoxes:
    parts = [part for of in labelled if of for part in (of.labels.training, of.labels.validation)]
    return LabelledBoxes.joined(LabelledBoxes(part.frames, part.boxes) for part in parts)
