"""Tests of the comparison of late gradients; on real crops it takes minutes."""

from dataclasses import replace

import late_gradients as late
import numpy as np
import pytest

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.names import JobName
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.labelled import LabelledCrops


def crops(count, seed, first_track):
    rng = np.random.default_rng(seed)
    order = np.arange(count)
    pictures = rng.integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
    return LabelledCrops(pictures, rng.integers(0, 2, count), first_track + order, order * 1000)


@pytest.fixture(scope="module")
def task():
    model = build_edge_model(("car", "bus"), 0, seed=1)
    training = {late.BIG: crops(24, 1, 0), late.SMALL: crops(12, 2, 100)}
    config = RetrainConfig(2, 4, 0, 0, 1.0)
    return TrainingTask(
        JobName("job"),
        config,
        to_bytes(model),
        model.classes,
        training,
        crops(20, 3, 500),
        late.HUB,
        mode="asynchronous",
    )


def play(task, workers=3, is_late=True):
    assignment = Assignment(JobName("job"), late.SPREAD[workers], "as it is", late.HUB)
    return late.Play(task, assignment, late.SHARES, is_late)


def test_late_gradients_lateness_follows_workers_and_is_reproducible(task):
    for workers in late.SPREAD:
        played = play(task, workers).run()
        assert workers - 1.5 < played.mean_late < workers - 1
        assert played.stalest >= workers - 1
        assert play(task, workers).run() == played


def test_late_gradients_without_lateness_use_newest_weights(task):
    played = play(replace(task, foresees=False), is_late=False).run()
    assert (played.mean_late, played.stalest) == (0.0, 0)


def test_late_gradients_table_shows_points_below_one_node():
    def row(workers, seed, *accuracies):
        return late.Row(
            workers, "foreseen" if workers else "one node", 0, seed, late.Played(accuracies, 1.0, 2)
        )

    table = late.shown([row(0, 1, 0.5, 0.7), row(2, 1, 0.6, 0.68), row(0, 2, 0.8, 0.7), row(2, 2, 0.8, 0.8)])
    (cells,) = zip(*(column.cells for column in table.columns), strict=True)
    assert cells == ("0", "2", "foreseen", "-1.00", "-2.00", "+4.00", "+4.50", "1.0")
