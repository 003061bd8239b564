"""Tests that a recorded stream contains the outcomes of real trainings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from bars import CARD, FPS, FRAMES, NAMES, SIDE, WINDOW_US, Golden, frames, tiny_trunk
from starts import start_retraining

import ekya.simulation.emulated.trace_recorder
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, Profiler, family_of
from ekya.core.records import LabelledBoxes
from ekya.core.speed import LINEAR
from ekya.core.trace import BASE, Origin
from ekya.core.units import StreamId
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.predictor import Predictor
from ekya.models.proposer import GivenBoxes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.inference import Classifier
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation, retraining_of
from ekya.simulation.emulated.courses import Common, Course, courses_of
from ekya.simulation.emulated.model_inputs import CropInput
from ekya.simulation.emulated.stored_frames import iterate_windows
from ekya.simulation.emulated.trace_recorder import SCORED_PER_S, StreamRecorder
from ekya.simulation.emulated.world import training_steps
from ekya.simulation.retraining import VirtualRetraining

CAM = StreamId("cam")
WINDOWS = 3
GAMMAS = tuple(
    RetrainConfig(epochs, 8, 0, blocks, fraction)
    for epochs in (1, 3)
    for blocks in (0, 1)
    for fraction in (0.5, 1.0)
)
LAMBDAS = tuple(InferenceConfig(every, side) for every in (1, 3) for side in (SIDE, 12))
FAMILIES = (Family(0, 0, 8), Family(1, 0, 8))
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)


class Recorded:
    """Recorded stream with the inputs of its recording."""

    def __init__(self, every_start, gammas=GAMMAS):
        torch.set_num_threads(1)
        self.base = build_edge_model(NAMES, 0, 3, "tiny")
        collector = WindowCollector(SETTINGS, WINDOW_US)
        self.windows = tuple(
            iterate_windows(
                frames(WINDOWS * FRAMES), GivenBoxes(), collector, None, CropInput(SIDE), WINDOW_US, None
            )
        )
        self.told = []
        self.common = Common(
            gammas, LAMBDAS, self.base, Golden(), CARD, WINDOW_US, every_start, self.told.append
        )
        self.trace = StreamRecorder(CAM, SETTINGS, self.windows, 0, self.common).record()


@pytest.fixture(scope="module", autouse=True)
def tiny():
    EDGE_MODELS["tiny"] = tiny_trunk
    yield
    del EDGE_MODELS["tiny"]


@pytest.fixture(scope="module")
def recorded(tiny):
    return Recorded(every_start=True)


@pytest.fixture(scope="module")
def of_the_youngest(tiny):
    return Recorded(every_start=False, gammas=GAMMAS[1:4:2])


def labels_of(recorded, window):
    material = recorded.windows[window - 1].material
    return StreamPreparation(SETTINGS, material, Classifier(recorded.base, NAMES), Golden()).label()


def test_courses_one_training_per_family_and_data_fraction():
    courses = courses_of(GAMMAS)
    assert courses == tuple(
        Course(RetrainConfig(3, 8, 0, blocks, fraction), frozenset({1, 3}))
        for blocks in (0, 1)
        for fraction in (0.5, 1.0)
    )


def test_recording_window_0_serves_only_the_base_model(recorded):
    first = recorded.trace.windows[0]
    assert (first.trainings, first.trials, first.training_crops) == ((), (), 0)
    assert [start.origin for start in first.starts] == [BASE]
    assert first.labelling_gpu_s == first.inference_gpu_s == 0.0


def test_recording_later_windows_have_every_gamma(recorded):
    for window in recorded.trace.windows[1:]:
        known = [start.origin for start in window.starts]
        assert known[0] == BASE
        assert {training.started_from for training in window.trainings} == set(known)
        for config in GAMMAS:
            for origin in known:
                assert window.best_training(config, origin).started_from == origin
        for family in FAMILIES:
            for origin in known:
                trial = window.best_trial(family, origin, Profiler.PAPER)
                assert (trial.started_from, trial.profiler) == (origin, Profiler.PAPER)
                assert {said.config for said in trial.predicted} == {
                    config for config in GAMMAS if family_of(config) == family
                }
    trainings = [training for window in recorded.trace.windows for training in window.trainings]
    assert len(recorded.told) == len(trainings) <= recorded.common.trainings(WINDOWS)


def test_recording_every_start_keeps_all_models_that_may_serve(recorded):
    before, window = recorded.trace.windows[1:]
    serving = before.start_of(BASE).validation_accuracy
    assert serving < 0.9
    expected = [BASE]
    for family in FAMILIES:
        best = max(
            epoch.standings[0].validation_accuracy
            for training in before.trainings
            if training.family == family
            for epoch in training.epochs
        )
        expected += [Origin(1, family)] if best >= serving else []
    assert [start.origin for start in window.starts] == expected
    assert len(expected) > 1


def test_recording_default_starts_from_youngest_of_each_family(of_the_youngest):
    window = of_the_youngest.trace.windows[2]
    youngest = {start.origin for start in window.starts if start.origin.family}
    missing = {BASE} if len(youngest) < len(FAMILIES) else set()
    assert {training.started_from for training in window.trainings} == youngest | missing


def test_recording_accurate_models_follow_baselines_too(tiny, monkeypatch):
    monkeypatch.setattr(ekya.simulation.emulated.trace_recorder, "ENOUGH_ACCURACY", 0.0)
    before, window = Recorded(every_start=False, gammas=GAMMAS[1:4:2]).trace.windows[1:]
    serving = before.start_of(BASE).validation_accuracy
    better = [
        training.family
        for training in before.trainings
        if training.epochs[0].standings[0].validation_accuracy >= serving
    ]
    assert better
    assert [start.origin for start in window.starts] == [BASE, *(Origin(1, family) for family in better)]
    started = {(training.started_from, training.family) for training in window.trainings}
    assert started == {
        *((BASE, family) for family in FAMILIES),
        *((Origin(1, family), family) for family in better),
    }


def test_recording_training_equals_that_of_a_run(recorded):
    """An emulated retraining, with a γ shorter than the recorded one, gives the same weights."""
    config, labels = RetrainConfig(1, 8, 0, 1, 0.5), labels_of(recorded, 1)
    retraining = retraining_of(recorded.base, config, labels, ExemplarMemory(), SETTINGS, 1)
    command = start_retraining(CAM, config)
    emulated = VirtualRetraining(command, training_steps(retraining, CARD), LINEAR, 0)
    assert emulated.finish_step(emulated.due_us) == []
    progress, finished = emulated.finish_step(emulated.due_us)
    window = recorded.trace.windows[1]
    epoch = window.best_training(config, BASE).epochs[0]
    assert epoch.gpu_s == pytest.approx(finished.gpu_s)
    assert epoch.standings[0].validation_accuracy == pytest.approx(progress.validation_accuracy)
    assert (window.training_crops, window.validation_crops) == (
        len(labels.training.examples),
        len(labels.validation.examples),
    )

    # Accuracy is measured on unlabelled objects, also in the next window.
    model = emulated.best.model
    assert [standing.window for standing in epoch.standings] == [1, 2]
    for standing in epoch.standings:
        seen = recorded.windows[standing.window].frames.thinned(round(FPS / SCORED_PER_S))
        answers, _ = Predictor(model).predict(seen.images[SIDE], SIDE)
        labelled_tracks = _labelled_tracks(recorded)
        counts = ~np.isin(seen.reference.tracks, labelled_tracks)
        right = answers[counts] == seen.reference.classes[counts]
        assert standing.accuracy == pytest.approx(right.mean())
        # Objects of the last window are never labelled.
        assert np.all(counts) == (standing.window == WINDOWS - 1)


def _labelled_tracks(recorded):
    tracks = []
    for window in range(1, WINDOWS):
        labels = labels_of(recorded, window)
        reference = recorded.windows[window - 1].frames.reference
        for part in (labels.training, labels.validation):
            for frame, box in zip(part.frames, part.boxes, strict=True):
                at = int(np.flatnonzero(reference.frame == frame)[0])
                span = slice(reference.offsets[at], reference.offsets[at + 1])
                same = np.all(reference.boxes[span] == box, axis=1)
                tracks += reference.tracks[span][same].tolist()
    return tracks


def test_recording_true_lambda_leaves_out_changed_objects(recorded):
    window = recorded.trace.windows[1]
    options = {option.config: option for option in window.inference}
    assert set(options) == set(LAMBDAS)
    assert options[InferenceConfig(1, SIDE)].relative_accuracy == 1.0
    assert options[InferenceConfig(3, SIDE)].relative_accuracy < 0.9
    needs = [options[InferenceConfig(every, SIDE)].share_needed_milli for every in (1, 3)]
    assert needs[0] == pytest.approx(3 * needs[1], abs=3)
    assert {option.config for option in window.inference_profiled} == set(LAMBDAS)


def test_recording_accuracy_is_given_by_parts_of_the_window(recorded):
    for window, seen in zip(recorded.trace.windows, recorded.windows, strict=True):
        counts = ~np.isin(seen.frames.reference.tracks, _labelled_tracks(recorded))
        assert sum(window.objects_by_part) == np.count_nonzero(counts) > 0
        for start in window.starts:
            parts = start.standing.by_part
            assert len(parts) == len(window.objects_by_part)
            assert np.dot(parts, window.weights) == pytest.approx(start.standing.accuracy, abs=0.05)
    standings = [start.standing.by_part for window in recorded.trace.windows for start in window.starts]
    assert any(len(set(parts)) > 1 for parts in standings)


def test_recording_long_windows_are_scored_on_fewer_frames(recorded, of_the_youngest, monkeypatch):
    monkeypatch.setattr(ekya.simulation.emulated.trace_recorder, "MOST_FRAMES", 15)
    monkeypatch.setattr(ekya.simulation.emulated.trace_recorder, "MOST_SCORED", 5)
    thin = StreamRecorder(CAM, SETTINGS, recorded.windows, 0, of_the_youngest.common).record()
    for window, whole in zip(thin.windows, of_the_youngest.trace.windows, strict=True):
        assert 0.3 < sum(window.objects_by_part) / sum(whole.objects_by_part) < 0.7
        for start, usual in zip(window.starts, whole.starts, strict=True):
            assert start.standing.accuracy == pytest.approx(usual.standing.accuracy, abs=0.1)
        for option, usual in zip(window.inference, whole.inference, strict=True):
            assert replace(option, relative_accuracy=usual.relative_accuracy) == usual
            assert 0.0 < option.relative_accuracy <= 1.0
        for training, usual in zip(window.trainings, whole.trainings, strict=True):
            pairs = zip(training.epochs, usual.epochs, strict=True)
            assert all(
                one.standings[0].validation_accuracy == other.standings[0].validation_accuracy
                for one, other in pairs
            )
        assert window.trials == whole.trials


def test_recording_also_labelled_objects_do_not_count(recorded, of_the_youngest):
    seen = recorded.windows[1].frames.reference
    tracks = np.setdiff1d(seen.tracks, _labelled_tracks(recorded))[:3]
    rows = [int(np.flatnonzero(seen.tracks == track)[0]) for track in tracks]
    frame = np.repeat(seen.frame, np.diff(seen.offsets))[rows]
    also = LabelledBoxes(frame, seen.boxes[rows])
    common = replace(of_the_youngest.common, retrain_configs=GAMMAS[1:2])
    trace = StreamRecorder(CAM, SETTINGS, recorded.windows, 0, common, also).record()
    for window, before, shown in zip(
        trace.windows, of_the_youngest.trace.windows, recorded.windows, strict=True
    ):
        fewer = np.count_nonzero(np.isin(shown.frames.reference.tracks, tracks))
        assert sum(window.objects_by_part) == sum(before.objects_by_part) - fewer
    left_out = [(of.frame, of.box) for of in trace.left_out]
    assert left_out[: len(of_the_youngest.trace.left_out)] == [
        (of.frame, of.box) for of in of_the_youngest.trace.left_out
    ]
    assert left_out[-3:] == [(int(at), tuple(box)) for at, box in zip(frame, seen.boxes[rows], strict=True)]


def test_recording_histograms_count_true_objects(recorded):
    for window, seen in zip(recorded.trace.windows, recorded.windows, strict=True):
        assert sum(window.class_histogram) == len(seen.frames.reference.classes)
        truth = seen.frames.reference.classes.astype(np.int64)
        answers = CropInput(SIDE).answer_frames(seen.frames, (truth, np.ones(len(truth), np.float32)))
        everything = seen.frames.score(answers, len(NAMES))[0]
        assert window.class_histogram == everything.counted_by_class
