"""Tests of remote retrainings, which need no local share: they are trained only when weights arrive."""

import numpy as np
import pytest
import torch
from bars import CARD, FPS, FRAMES, NAMES, SIDE, WINDOW_US, Golden, frames, tiny_trunk
from starts import start_retraining

from ekya.core.configs import RetrainConfig
from ekya.core.events import RetrainFinished
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.weights import Elsewhere
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.model import build_edge_model
from ekya.models.proposer import GivenBoxes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.inference import Classifier
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation, retraining_of
from ekya.simulation.emulated.model_inputs import CropInput
from ekya.simulation.emulated.stored_frames import iterate_windows
from ekya.simulation.emulated.world import training_steps
from ekya.simulation.retraining import EpochEnd, TrainingStep, VirtualRetraining

CAM, S = StreamId("cam"), 1_000_000
GAMMA = RetrainConfig(3, 8, 0, 1, 1.0)
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)


@pytest.fixture(scope="module")
def base():
    torch.set_num_threads(1)
    EDGE_MODELS["tiny"] = tiny_trunk
    yield build_edge_model(NAMES, 0, 3, "tiny")
    del EDGE_MODELS["tiny"]


@pytest.fixture(scope="module")
def labels(base):
    """Labels of windows 1 and 2."""
    collector = WindowCollector(SETTINGS, WINDOW_US)
    seen = tuple(
        iterate_windows(frames(2 * FRAMES), GivenBoxes(), collector, None, CropInput(SIDE), WINDOW_US, None)
    )
    serving = Classifier(base, NAMES)
    return [StreamPreparation(SETTINGS, window.material, serving, Golden()).label() for window in seen]


def weights(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


def same(one, other):
    ours, theirs = weights(one), weights(other)
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def arriving(made, elsewhere, now_us=5 * S):
    def bring():
        made.append(1)
        return EpochEnd(2, 0.75, 4.0, lambda: "weights")

    command = start_retraining(CAM, GAMMA, window=6, share_milli=0, elsewhere=elsewhere)
    return VirtualRetraining(command, iter([TrainingStep(4.0, bring)]), LINEAR, now_us)


def test_arrival_before_its_time_is_not_trained():
    made = []
    coming = arriving(made, Elsewhere(9 * S))
    coming.resize(500, 6 * S)
    coming.delay(S)
    assert (coming.due_us, coming.best, coming.window, coming.used_gpu_s(8 * S)) == (9 * S, None, 6, 0.0)
    assert not made


def test_arrival_reports_once_and_costs_nothing_here():
    made = []
    coming = arriving(made, Elsewhere(9 * S))
    progress, finished = coming.finish_step(9 * S)
    assert (progress.validation_accuracy, progress.gpu_s, finished.gpu_s) == (0.75, 0.0, 0.0)
    assert (coming.best.model, coming.due_us, made) == ("weights", None, [1])


def test_arrival_kept_model_is_due_immediately():
    kept = arriving([], Elsewhere(2 * S, trained_in=3))
    assert (kept.due_us, kept.window) == (5 * S, 3)


def test_arrival_has_weights_of_the_best_epoch(base, labels):
    def fresh():
        return retraining_of(base, GAMMA, labels[0], ExemplarMemory(), SETTINGS, 1)

    stepped = fresh()
    stepped.prepare_training()
    told = [stepped.run_epoch().validation_accuracy for _ in range(GAMMA.epochs)]
    command = start_retraining(CAM, GAMMA, share_milli=0, elsewhere=Elsewhere(9 * S))
    arriving = VirtualRetraining(command, training_steps(fresh(), CARD), LINEAR, S)
    progress, finished = arriving.finish_step(9 * S)
    best = arriving.best
    assert (progress.epoch, progress.validation_accuracy, progress.gpu_s) == (1, max(told), 0.0)
    assert finished.gpu_s == 0.0
    assert best.validation_accuracy == max(told)
    assert best.epoch == max(epoch for epoch, accuracy in enumerate(told, 1) if accuracy == max(told))
    assert not same(best.model, base)


def coming(base, labels):
    command = start_retraining(CAM, GAMMA, share_milli=0)
    retraining = retraining_of(base, GAMMA, labels[0], ExemplarMemory(), SETTINGS, 1)
    return VirtualRetraining(command, training_steps(retraining, CARD), LINEAR, 0, by_snapshots=True)


def test_snapshots_each_epoch_equals_a_local_training(base, labels):
    stepped = retraining_of(base, GAMMA, labels[0], ExemplarMemory(), SETTINGS, 1)
    stepped.prepare_training()
    made = [(stepped.run_epoch().validation_accuracy, stepped.model()) for _ in range(GAMMA.epochs)]
    home = coming(base, labels)
    assert home.best is None
    for epoch, (accuracy, _) in enumerate(made, 1):
        progress, *rest = home.receive(epoch, epoch * S)
        assert (progress.t_us, progress.epoch, progress.gpu_s) == (epoch * S, epoch, 0.0)
        assert progress.validation_accuracy == accuracy
        assert [type(event) for event in rest] == [RetrainFinished] * (epoch == GAMMA.epochs)
        assert home.best.validation_accuracy == max(accuracy for accuracy, _ in made[:epoch])
    assert same(home.best.model, made[home.best.epoch - 1][1])
    assert (home.due_us, home.used_gpu_s(9 * S)) == (None, 0.0)


def test_snapshots_sparse_ends_with_best_of_the_rest(base, labels):
    stepped = coming(base, labels)
    accuracies = [stepped.receive(epoch, epoch * S)[0].validation_accuracy for epoch in (1, 2, 3)]
    home = coming(base, labels)
    (first,) = home.receive(1, S)
    assert first.epoch == 1
    last, _ = home.receive(3, 3 * S)
    assert last.validation_accuracy == max(accuracies[1:])
    assert last.epoch in (2, 3)


def test_snapshots_ended_retraining_gives_no_events(base, labels):
    home = coming(base, labels)
    home.receive(1, S)
    assert home.receive(1, 2 * S) == []
    home.stop_training(2 * S)
    assert home.receive(2, 3 * S) == []
    assert home.best is not None


def test_histogram_background_is_not_counted(labels):
    counts = labels[0].histogram(len(NAMES), None)
    assert labels[0].histogram(len(NAMES), 2) == (*counts[:2], 0)
    assert counts[2] > 0
