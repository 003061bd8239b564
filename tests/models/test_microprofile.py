import itertools
from dataclasses import replace

import numpy as np
import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Profiler
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.microprofile import (
    FOLDS,
    HEAD_EPOCHS,
    SUBSET_EPOCHS,
    MicroProfile,
    Trying,
    random_subset,
    way_to_try,
)
from ekya.models.training.operations import RetrainingCost, forward_operations, retraining_cost
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
        way=Trying.ON_A_SUBSET,
        training=make_bars(120, 1),
        validation=make_bars(20, 2, first_track=500),
        exemplars=0,
        classes=tiny_model.classes,
        background=None,
        seed=1,
        clock=lambda: 0.5 * next(ticks),
    )


@pytest.fixture
def head_trial(trial: MicroProfile, make_bars):
    """Micro-profile of fifty objects with two crops each, 80 to train, 20 to validate, in small batches."""
    return replace(trial, family=replace(HEAD, batch_size=4), way=Trying.ON_FOLDS, training=make_bars(80, 1))


def test_micro_profile_way_depends_on_blocks_and_labels() -> None:
    assert way_to_try(Profiler.EKYA, 0, 5, 15, first=True) is Trying.ON_FOLDS
    assert way_to_try(Profiler.EKYA, 0, 5, 15, first=False) is Trying.NOT_AT_ALL
    assert way_to_try(Profiler.EKYA, 0, 5, 80, first=False) is Trying.ON_FOLDS
    assert way_to_try(Profiler.EKYA, 2, 20, 15, first=True) is Trying.ON_A_SUBSET
    assert way_to_try(Profiler.EKYA, 2, 20, 80, first=False) is Trying.NOT_AT_ALL
    assert way_to_try(Profiler.EKYA, 2, 500, 80, first=False) is Trying.ON_A_SUBSET
    tried = {way_to_try(Profiler.PAPER, blocks, 20, 15, first=False) for blocks in (0, 2)}
    assert tried == {Trying.ON_A_SUBSET}


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


def test_micro_profile_of_head_measures_every_object(head_trial: MicroProfile) -> None:
    """Two crops of one object count as one."""
    curve = head_trial.run()
    assert len(curve.accuracies) == HEAD_EPOCHS + 1
    assert 25 <= curve.validation_crops <= 50
    assert curve.subset_crops == round(100 * (FOLDS - 1) / FOLDS)
    assert curve.accuracies[-1] > curve.accuracies[0]


def test_micro_profile_of_many_objects_takes_one_crop_each(head_trial: MicroProfile, make_bars) -> None:
    """Sixty training objects with two crops each, all of one class, and ten to validate."""
    many = make_bars(120, 1, classes=(1,))
    validation = make_bars(20, 2, classes=(1,), first_track=500)
    tried = replace(head_trial, training=many, validation=validation)
    assert tried.subset_crops == round(70 * (FOLDS - 1) / FOLDS)
    assert tried.cost().preparation == 70 * forward_operations(32, architecture="tiny")
    curve = tried.run()
    assert len(curve.accuracies) == HEAD_EPOCHS + 1
    assert curve.validation_crops == 70


def test_micro_profile_ignores_background(head_trial: MicroProfile) -> None:
    background = int(head_trial.training.classes[0])
    everything = np.concatenate([head_trial.training.classes, head_trial.validation.classes])
    curve = replace(head_trial, background=background).run()
    assert 14 < curve.validation_crops < 45
    assert (everything == background).any()


def test_micro_profile_of_untried_family_has_the_costs_of_a_tried_one(trial: MicroProfile) -> None:
    tried = trial.priced(trial.run(), in_operations)
    untried = replace(trial, way=Trying.NOT_AT_ALL).untried(in_operations)
    assert untried == replace(tried, accuracies=())
    assert untried.epoch_gpu_s > 0.0


@pytest.mark.parametrize("way", [Trying.ON_A_SUBSET, Trying.ON_FOLDS])
@pytest.mark.parametrize("stop_at", [0, 1])
def test_micro_profile_stops_at_a_deadline(trial: MicroProfile, way: Trying, stop_at: int) -> None:
    family = HEAD if way is Trying.ON_FOLDS else BLOCKS
    curve = replace(trial, family=family, way=way).run(lambda epoch: epoch < stop_at)
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
        memory = memory.update_exemplars(trial.start, make_bars(200, 3, first_track=900))
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


def test_micro_profile_of_head_costs_one_pass(head_trial: MicroProfile) -> None:
    assert head_trial.cost().preparation == 100 * forward_operations(32, architecture="tiny")


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


def test_micro_profile_of_head_learns_from_pooled_labels_and_measures_its_own(
    head_trial: MicroProfile, make_bars
) -> None:
    """Few objects of one class say little; pooled ones show the others."""
    few = replace(
        head_trial, training=make_bars(8, 1), validation=make_bars(4, 2, first_track=500), family=HEAD
    )
    pooled = replace(few, pooled=make_bars(90, 3, first_track=900))
    alone, together = few.run(), pooled.run()
    assert together.validation_crops == alone.validation_crops
    assert together.accuracies[0] == alone.accuracies[0]
    assert together.accuracies[-1] > alone.accuracies[-1]
    assert together.subset_crops > alone.subset_crops + 50
    assert pooled.cost().preparation > few.cost().preparation


def test_micro_profile_on_a_subset_measures_alike_with_pooled_labels(trial: MicroProfile, make_bars) -> None:
    """Pooled labels of another mix of classes do not change what accuracy means."""
    one_class = make_bars(300, 3, first_track=900)
    pooled = replace(trial, pooled=one_class.select_rows(np.flatnonzero(one_class.classes == 0)))
    alone, together = trial.run(), pooled.run()
    assert together.accuracies[0] == alone.accuracies[0]
    assert together.subset_crops == round(16 * (1 + len(pooled.pooled) / 120))
