import itertools
from dataclasses import replace

import numpy as np
import pytest

from ekya.core.configs import RetrainConfig
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.microprofile import PROFILED_EPOCHS, MicroProfile, random_subset
from ekya.learning.operations import forward_operations

FAMILY = RetrainConfig(epochs=30, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.1)


def profile(
    model: EdgeModel, training: LabelledCrops, validation: LabelledCrops, seed: int = 1
) -> MicroProfile:
    ticks = itertools.count()
    return MicroProfile(
        model, FAMILY, training, validation, None, model.classes, seed, clock=lambda: 0.5 * next(ticks)
    )


def test_a_family_is_tried_for_a_few_epochs_on_a_subset(tiny_model: EdgeModel, make_bars) -> None:
    charged: list[int] = []

    def charge(epoch: int) -> bool:
        charged.append(epoch)
        return True

    curve = profile(tiny_model, make_bars(90, 1), make_bars(20, 2, first_track=500)).run(charge)
    assert (curve.batch_size, curve.head_width, curve.trainable_blocks) == (16, 0, 1)
    assert curve.subset_crops == 64
    assert len(curve.accuracies) == PROFILED_EPOCHS + 1
    assert curve.accuracies[-1] > curve.accuracies[0]
    assert (curve.prepare_gpu_s, curve.epoch_gpu_s) == (0.5, 0.5)
    assert charged == list(range(PROFILED_EPOCHS + 1))


@pytest.mark.parametrize("stop_at", [0, 1])
def test_a_deadline_stops_it(tiny_model: EdgeModel, make_bars, stop_at: int) -> None:
    curve = profile(tiny_model, make_bars(20, 1), make_bars(6, 2)).run(lambda epoch: epoch < stop_at)
    assert len(curve.accuracies) == stop_at + 1
    assert (curve.epoch_gpu_s > 0) == (stop_at > 0)


def test_the_subset_is_a_tenth_but_at_least_64(make_bars) -> None:
    many = make_bars(900, 1)
    assert len(random_subset(many, 1, 1000)) == 100
    assert len(random_subset(many, 1, 300)) == 64
    assert len(random_subset(make_bars(30, 1), 1, 38)) == 30
    assert not np.array_equal(random_subset(many, 1, 300).t_us, random_subset(many, 2, 300).t_us)


def test_the_cost_is_that_of_the_subset_with_its_part_of_the_memory(tiny_model: EdgeModel, make_bars) -> None:
    memory = ExemplarMemory(60).update(tiny_model, make_bars(200, 3, first_track=900))
    tried = profile(tiny_model, make_bars(128, 1), make_bars(20, 2, first_track=500))
    forward = forward_operations(32, architecture="tiny")
    assert tried.cost().preparation == (64 + 20) * forward
    assert replace(tried, memory=memory).cost().preparation == (64 + 20 + 30) * forward
