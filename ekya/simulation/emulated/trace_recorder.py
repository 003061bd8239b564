"""Records one stream of a trace: every γ trained to its end on the images and labels that a run would see.

An emulated run with the same fleet and seed cuts the same images, labels and splits the same objects and
trains with the same seeds, so that simulated and emulated windows can be compared (paper §6.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.profile import Profiler, family_of
from ekya.core.records import NO_LABELS, LabelledBoxes
from ekya.core.trace import (
    BASE,
    Epoch,
    LeftOut,
    Origin,
    Predicted,
    RecordedStart,
    RecordedTraining,
    StreamTrace,
    StreamWindow,
    Trial,
)
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import MOST_EXEMPLARS, ExemplarMemory
from ekya.models.training.operations import retraining_cost
from ekya.pipeline.inference import serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation, counted_curve, retraining_of
from ekya.pipeline.window_preparation import (
    FrameCosts,
    LabelledStream,
    add_pass,
    check_teacher,
    label_stream,
    profile_inference,
)
from ekya.planning.profiling.estimate import estimate_as_in_the_paper
from ekya.planning.profiling.inference_profile import inference_options, sides_of
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY
from ekya.simulation.emulated.answers import ImageBatch, image_batch
from ekya.simulation.emulated.courses import Candidate, Common, Course, TraceCandidates, TrainedCourse
from ekya.simulation.emulated.examining import Exam, true_options
from ekya.simulation.emulated.model_inputs import model_input_of
from ekya.simulation.emulated.preparing import boxes_in, cost_of_frames, golden_gpu_s, step_cost
from ekya.simulation.emulated.stored_frames import ModelInput, SeenFrames, SeenWindow
from ekya.simulation.retraining import Checkpoint

MOST_FRAMES = 500
"""Frames of a window on which a model is scored, evenly spaced, and those on which λ is, in bursts.

All frames of a window with fewer. Neighbouring frames show the same objects.
"""

SCORED_PER_S, MOST_SCORED = 4.0, 120
"""Frames per second, and of a window, on which retrained models are scored; heads alone: as any model."""

_JUDGES = 2
"""Number of newest models that measure the accuracy that λ keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class _Exams:
    """Exams of one window.

    Attributes:
        whole: the usual one.
        sampled: on fewer frames, for models that are scored after every epoch.
        bursts: consecutive frames, on which λ are scored.
    """

    whole: Exam
    sampled: Exam
    bursts: SeenFrames


@dataclass(eq=False)
class StreamRecorder:
    """Records one stream.

    Args:
        stream: its id.
        settings: of the stream.
        windows: all of its windows.
        proposer_operations: counted operations of proposing objects in one frame.
        common: inputs shared by all streams.
        also_labelled: further objects that do not count, such as those that a run labelled.
    """

    stream: StreamId
    settings: PreparationSettings
    windows: Sequence[SeenWindow]
    proposer_operations: int
    common: Common
    also_labelled: LabelledBoxes = NO_LABELS
    _candidates: TraceCandidates = field(init=False)

    def __post_init__(self) -> None:
        self._candidates = TraceCandidates(tuple(self.common.families), self.common.every_start)

    @property
    def _model_input(self) -> ModelInput:
        return model_input_of(self.settings, self.common.inference_configs)

    def record(self) -> StreamTrace:
        """Records the stream over all its windows."""
        labelled = [None, *self._labelled()]
        left_out = LabelledBoxes.join_boxes([_boxes_of(labelled), self.also_labelled])
        counting = self._model_input.counting([seen.frames for seen in self.windows], left_out)
        exams = [self._exams(frames, of) for frames, of in zip(counting, labelled, strict=True)]
        memory = ExemplarMemory(MOST_EXEMPLARS[self.settings.task])
        self._candidates.add([Candidate(BASE, self.common.base, memory, needed=True)])
        recorded = [self._window(of, exams[window:]) for window, of in enumerate(labelled)]
        return StreamTrace(
            self.stream,
            self.settings.fps,
            tuple(recorded),
            self.windows[-1].part,
            tuple(map(LeftOut, left_out.frame.tolist(), map(tuple, left_out.boxes.tolist()))),
        )

    def trials(
        self,
        window: int,
        model: EdgeModel,
        origin: Origin,
        exemplars: int,
        labels: StreamLabels,
    ) -> Iterator[Trial]:
        """Yields the micro-profile of every family for one model, with the prediction for each γ.

        Args:
            window: its index.
            model: the model to retrain.
            origin: of the model.
            exemplars: size of its stream's exemplar memory.
            labels: of the window.
        """
        preparation = replace(self._preparation(window, model), exemplars=exemplars)
        tried = [
            counted_curve(preparation.trial(family, labels, clock=float), self.common.card)
            for family in self.common.families
        ]
        promised = estimate_as_in_the_paper(
            [curve for curve, _ in tried], self.common.retrain_configs, len(labels.training.examples)
        )
        for curve, gpu_s in tried:
            said = tuple(
                Predicted(option.config, option.accuracy_after, option.gpu_s)
                for option in promised
                if family_of(option.config) == curve.family
            )
            yield Trial(curve.family, gpu_s, curve, said, origin, Profiler.PAPER)

    def _window(self, labelled: LabelledStream | None, exams: Sequence[_Exams]) -> StreamWindow:
        """Records the window of the first exam; the others are later windows."""
        exam, (newest,) = exams[0].whole, self._candidates.newest(1)
        known = StreamWindow(
            window=exam.window,
            class_histogram=self._histogram(exam.window),
            training_crops=0,
            validation_crops=0,
            labelling_gpu_s=0.0,
            inference_gpu_s=0.0,
            inference=(),
            inference_profiled=self._guessed_options(),
            starts=tuple(RecordedStart(of.origin, exam.standing(of.model)) for of in self._candidates),
            trainings=(),
            trials=(),
            objects_by_part=exam.objects_by_part,
        )
        if labelled is not None:
            known = self._prepared(known, labelled, newest.model)
            if labelled.labels.can_train:
                known = self._trained(known, labelled.labels, exams)
        youngest = [of.model for of in self._candidates.newest(_JUDGES)]
        return replace(known, inference=self._true_options(exams[0].bursts, youngest))

    def _prepared(self, known: StreamWindow, labelled: LabelledStream, serving: EdgeModel) -> StreamWindow:
        """Adds costs and results of the window's preparation."""
        labels, golden, card = labelled.labels, self.common.golden, self.common.card
        prepared = self._preparation(known.window, serving)
        objects = prepared.material.mean_objects
        profiled, work = profile_inference(
            prepared,
            self.common.inference_configs,
            lambda _, burst: self._frame_costs(objects, boxes_in(burst)),
        )
        # As of a model that has not learnt from them: all labels measure it.
        measured = add_pass(labelled.work, labels.examples, prepared.settings.side)
        return replace(
            known,
            training_crops=len(labels.training.examples),
            validation_crops=len(labels.validation.examples),
            labelling_gpu_s=step_cost(measured, golden, card).gpu_s,
            inference_gpu_s=step_cost(work, golden, card).gpu_s,
            inference_profiled=profiled,
        )

    def _trained(self, known: StreamWindow, labels: StreamLabels, exams: Sequence[_Exams]) -> StreamWindow:
        """Trials and trains every family from every start; the best weights become candidates."""
        accuracies = {start.origin: start.standing.validation_accuracy for start in known.starts}
        trainings: list[RecordedTraining] = []
        trials: list[Trial] = []
        following: dict[Origin, Candidate] = {}
        for start in self._candidates.starts():
            if self.common.every_start or start.needed:
                trials += self.trials(known.window, start.model, start.origin, start.memory.size, labels)
            of_blocks = [exam.sampled for exam in exams]
            of_heads = [exam.whole.of_heads(start.model) or exam.sampled for exam in exams]
            serving = accuracies[start.origin]
            for family in self._candidates.families_of(start):
                runs = []
                for course in (course for course in self.common.courses if course.family == family):
                    exams_of = of_blocks if course.config.trainable_blocks else of_heads
                    runs.append(self._run(course, start, labels, exams_of))
                    self.common.on_training(f"{self.stream}, window {known.window}: {course.config.name}")
                trainings += [run.training for run in runs]
                # Validation parts are small and ties are frequent: prefer more data, as a plan does.
                best = max(runs, key=lambda run: (run.validation_accuracy, run.training.data_fraction))
                origin, needed = Origin(known.window, family), start.needed and serving < ENOUGH_ACCURACY
                # Of two candidates with one origin, keep that which more schedulers would have trained.
                wanted = start is self._candidates.youngest(family, needed) and (
                    needed or origin not in following
                )
                if wanted and best.would_serve(serving):
                    memory = start.memory.update_exemplars(labels.training.examples)
                    following[origin] = Candidate(origin, best.model, memory, needed)
        self._candidates.add(following.values())
        return replace(known, trainings=tuple(trainings), trials=tuple(trials))

    def _run(
        self,
        course: Course,
        start: Candidate,
        labels: StreamLabels,
        exams: Sequence[Exam],
    ) -> TrainedCourse:
        window = exams[0].window
        retraining = retraining_of(start.model, course.config, labels, start.memory, self.settings, window)
        prepare_gpu_s, epoch_gpu_s = self.common.card.retraining_gpu_s(retraining_cost(retraining))
        retraining.prepare_training()
        epochs: list[Epoch] = []
        best = Checkpoint(0, -1.0, start.model)
        while not retraining.done:
            result = retraining.run_epoch()
            model = retraining.model()
            standing = exams[0].standing(model, result.validation_accuracy)
            epochs.append(Epoch(result.epoch, prepare_gpu_s + result.epoch * epoch_gpu_s, (standing,)))
            if result.validation_accuracy >= best.validation_accuracy:
                best = Checkpoint(result.epoch, result.validation_accuracy, model)
            serving = epochs[best.epoch - 1]
            if result.epoch in course.ends and len(serving.standings) == 1:
                later = tuple(exam.standing(best.model) for exam in exams[1:])
                epochs[best.epoch - 1] = replace(serving, standings=(*serving.standings, *later))
        training = RecordedTraining(course.family, course.config.data_fraction, start.origin, tuple(epochs))
        return TrainedCourse(training, best.validation_accuracy, best.model)

    def _true_options(self, frames: SeenFrames, models: Sequence[EdgeModel]) -> tuple[InferenceOption, ...]:
        configs, model_input, answers = self.common.inference_configs, self._model_input, {}
        for resolution in sides_of(configs):
            images = self._batch(frames.images, resolution)
            answers[resolution] = tuple(
                model_input.answer_frames(frames, images.run_model(model)) for model in models
            )
        every = self.windows[frames.window].frames
        objects = sum(self._histogram(frames.window)) / max(len(every.frame), 1)
        frame_gpu_s, following_gpu_s = self._frame_costs(every.mean_objects, objects)
        return true_options(
            configs,
            frames,
            answers,
            len(self.settings.classes),
            frame_gpu_s,
            self.settings.fps,
            following_gpu_s,
        )

    def _guessed_options(self) -> tuple[InferenceOption, ...]:
        """Returns Λ before anything is profiled, as at the start of a run."""
        frame_gpu_s, following_gpu_s = self._frame_costs(TYPICAL_OBJECTS, TYPICAL_OBJECTS)
        return inference_options(
            self.common.inference_configs,
            (),
            frame_gpu_s,
            self.settings.fps,
            following_gpu_s=following_gpu_s,
        )

    def _frame_costs(self, objects: float, followed: float) -> FrameCosts:
        """Returns the costs of frames with this number of objects, and of following as many boxes."""
        golden, card, configs = self.common.golden, self.common.card, self.common.inference_configs
        return cost_of_frames(golden, card, self.proposer_operations, objects, followed, configs)

    def _histogram(self, window: int) -> tuple[int, ...]:
        seen = self.windows[window].frames.reference.classes
        count = len(self.settings.classes)
        return tuple(np.bincount(seen[(seen >= 0) & (seen < count)], minlength=count).tolist())

    def _exams(self, frames: SeenFrames, labelled: LabelledStream | None) -> _Exams:
        side, validation = self.settings.side, None
        bursts = lcm(*(config.every for config in self.common.inference_configs))
        step = _parts(len(frames.frame), MOST_FRAMES)
        examined = frames.thinned(step)
        often = max(round(self.settings.fps / SCORED_PER_S / step), _parts(len(examined.frame), MOST_SCORED))
        if labelled is not None and len(labelled.labels.validation.examples):
            validation = self._batch({side: labelled.labels.validation.examples.images}, side)
        whole = Exam(
            frames=examined,
            model_input=self._model_input,
            batch=self._batch(examined.images, side),
            labels=labelled.labels if labelled else None,
            validation=validation,
            classes=self.settings.classes,
            window_us=self.common.window_us,
        )
        return _Exams(
            whole,
            whole.thinned(step * often),
            frames.in_bursts(bursts, _parts(len(frames.frame), max(MOST_FRAMES, bursts))),
        )

    def _labelled(self) -> list[LabelledStream]:
        """Makes the labels at each window's opening; the choice of objects depends on no model."""
        base = self.common.base
        made = [label_stream(self._preparation(window, base)) for window in range(1, len(self.windows))]
        first = next(
            (at for at, of in enumerate(made) if of.prepared.images_to_check_teacher(of.labels)), None
        )
        if first is not None:
            made[first] = check_teacher(made[first], self.stream)
        return made

    def _preparation(self, window: int, model: EdgeModel) -> StreamPreparation:
        return StreamPreparation(
            self.settings,
            self.windows[window - 1].material,
            serving(model, self.settings.classes),
            self.common.golden,
            golden_gpu_s=partial(golden_gpu_s, self.common.golden, self.common.card),
        )

    def _batch(self, images: Mapping[int, NDArray[np.uint8]], resolution: int) -> ImageBatch:
        common = self.common
        return image_batch(common.base, common.blocks_left, images, resolution, self.settings.classes)


def _parts(frames: int, most: int) -> int:
    """Returns the least number of equal parts of which none has more than ``most`` frames; 1 without any."""
    return max(-(-frames // most), 1)


def _boxes_of(labelled: Sequence[LabelledStream | None]) -> LabelledBoxes:
    parts = [part for of in labelled if of for part in (of.labels.training, of.labels.validation)]
    return LabelledBoxes.join_boxes(LabelledBoxes(part.frames, part.boxes) for part in parts)
