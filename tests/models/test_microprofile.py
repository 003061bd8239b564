import itertools
from dataclasses import replace

import numpy as np
import pytest

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.microprofile import SUBSET_EPOCHS, MicroProfile, random_subset
from ekya.models.training.operations import RetrainingCost, retraining_cost
from ekya.models.training.trainer import Retraining, RetrainingData

BLOCKS = RetrainConfig(epochs=30, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.1)
HEAD = replace(BLOCKS, trainable_blocks=0)


def in_operations(cost: RetrainingCost) -> tuple[float, float]:
    """Price of one second an operation."""
    return float(cost.preparation), float(cost.epoch)


@pytest.fixture
def trial(tiny_model: EdgeModel, make_bars):
    """Micro-profile of 120 training and 20 validation crops; each reading of the clock adds half a second."""
    ticks = itertools.count()
    return MicroProfile(
        start=tiny_model,
        family=BLOCKS,
        training=make_bars(120, 1),
        validation=make_bars(20, 2, first_track=500),
        exemplars=0,
        classes=tiny_model.classes,
        seed=1,
        clock=lambda: 0.5 * next(ticks),
    )


def test_micro_profile_on_a_subset_runs_a_few_epochs(trial: MicroProfile) -> None:
    charged: list[int] = []

    def charge(epoch: int) -> bool:
        charged.append(epoch)
        return True

    curve = trial.run(charge)
    assert (curve.batch_size, curve.head_width, curve.trainable_blocks) == (16, 0, 1)
    assert curve.subset_crops == 16
    assert len(curve.accuracies) == SUBSET_EPOCHS + 1
    assert curve.validation_crops is None
    assert charged == list(range(SUBSET_EPOCHS + 1))


@pytest.mark.parametrize("family", [BLOCKS, HEAD])
@pytest.mark.parametrize("stop_at", [0, 1])
def test_micro_profile_stops_at_a_deadline(trial: MicroProfile, family: RetrainConfig, stop_at: int) -> None:
    curve = replace(trial, family=family).run(lambda epoch: epoch < stop_at)
    assert len(curve.accuracies) == stop_at + 1
    assert (curve.epoch_gpu_s > 0) == (stop_at > 0)


def test_random_subset_depends_on_the_seed(make_bars) -> None:
    many = make_bars(900, 1)
    assert len(random_subset(many, 1, 100)) == 100
    assert len(random_subset(make_bars(30, 1), 1, 38)) == 30
    assert not np.array_equal(random_subset(many, 1, 64).t_us, random_subset(many, 2, 64).t_us)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("remembered", [0, 60])
def test_micro_profile_cost_is_that_of_the_retraining(
    trial: MicroProfile, make_bars, fraction: float, remembered: int
) -> None:
    """Compares with the cost counted on the retraining itself, including exemplars and validation."""
    memory = ExemplarMemory(60)
    if remembered:
        memory = memory.update_exemplars(make_bars(200, 3, first_track=900))
    real = Retraining(
        trial.start,
        replace(BLOCKS, epochs=3, data_fraction=fraction),
        RetrainingData(trial.training, trial.validation, trial.classes, memory=memory, seed=1),
    )
    counted = replace(trial, exemplars=memory.size)
    curve = counted.priced(counted.run(), in_operations)
    scale = real.fresh_crops / curve.subset_crops
    cost = retraining_cost(real)
    assert curve.fixed_prepare_gpu_s + scale * curve.prepare_gpu_s == pytest.approx(cost.preparation)
    assert curve.fixed_epoch_gpu_s + scale * curve.epoch_gpu_s == pytest.approx(cost.epoch, rel=0.02)


@pytest.mark.parametrize("family", [BLOCKS, HEAD])
def test_micro_profile_with_pooled_labels_has_the_cost_of_a_retraining_on_all(
    trial: MicroProfile, family: RetrainConfig, make_bars
) -> None:
    pooled = make_bars(40, 3, first_track=900)
    tried = replace(trial, family=family, pooled=pooled)
    data = RetrainingData(trial.training, trial.validation, trial.classes, pooled=pooled)
    real = Retraining(trial.start, replace(family, data_fraction=1.0), data)
    assert real.fresh_crops == 160
    assert tried.retraining_cost() == retraining_cost(real)


def test_micro_profile_on_a_subset_measures_alike_with_pooled_labels(trial: MicroProfile, make_bars) -> None:
    """Pooled labels of another mix of classes do not change what accuracy means."""
    one_class = make_bars(300, 3, first_track=900)
    pooled = replace(trial, pooled=one_class.select_rows(np.flatnonzero(one_class.classes == 0)))
    alone, together = trial.run(), pooled.run()
    assert together.accuracies[0] == alone.accuracies[0]
    assert together.subset_crops == round(16 * (1 + len(pooled.pooled) / 120))
