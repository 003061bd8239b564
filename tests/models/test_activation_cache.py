from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import concatenate
from ekya.models.training.microprofile import MicroProfile
from ekya.models.training.operations import RetrainingCost, TrainingCrops, retraining_cost, training_cost
from ekya.models.training.trainer import Compute, Retraining, RetrainingData

HEAD = RetrainConfig(epochs=3, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=1.0)


def pictures(*shades: int) -> np.ndarray:
    return np.array([np.full((2, 2, 3), shade, np.uint8) for shade in shades]).reshape(-1, 2, 2, 3)


def shades_of(crops: np.ndarray) -> torch.Tensor:
    """Fake forward pass: half of each crop's mean, exact in every float type."""
    return torch.from_numpy(crops).float().mean(dim=(1, 2, 3), keepdim=False)[:, None] / 2


shades = st.lists(st.integers(0, 5), max_size=6)


@given(st.lists(shades, max_size=3), shades)
def test_activation_cache_passes_each_crop_once_in_order(kept, asked) -> None:
    passed = ActivationCache()
    for some in kept:
        passed.store_activations(1, pictures(*some), shades_of(pictures(*some)))
    new = []

    def through(crops: np.ndarray) -> torch.Tensor:
        new.extend((shades_of(crops)[:, 0] * 2).int().tolist())
        return shades_of(crops)

    there = {shade for some in kept for shade in some}
    assert passed.find_cached(1, pictures(*asked)).tolist() == [shade in there for shade in asked]
    found = passed.completed(1, pictures(*asked), through, "cpu")
    assert found[:, 0].tolist() == [shade / 2 for shade in asked]
    assert new == [shade for shade in asked if shade not in there]


def test_activation_cache_copy_is_independent() -> None:
    passed = ActivationCache()
    passed.store_activations(0, pictures(1), shades_of(pictures(1)))
    copied = passed.copy()
    passed.store_activations(0, pictures(2), shades_of(pictures(2)))
    assert not passed.find_cached(1, pictures(1)).any()
    assert copied.find_cached(0, pictures(1, 2)).tolist() == [True, False]
    assert copied.completed(0, pictures(2, 1), shades_of, "cpu")[:, 0].tolist() == [1.0, 0.5]


def retraining(
    model: EdgeModel, make_bars, passed: ActivationCache | None, config=HEAD, scope=None
) -> Retraining:
    return Retraining(
        model,
        config,
        RetrainingData(
            make_bars(40, 1),
            make_bars(20, 2, first_track=500),
            model.classes,
            memory=ExemplarMemory(12).update_exemplars(model, make_bars(20, 5, first_track=900)),
            seed=3,
        ),
        passed=passed,
    )


@pytest.mark.parametrize("blocks", [0, 1])
def test_activation_cache_reuse_learns_the_same(tiny_model: EdgeModel, make_bars, blocks: int) -> None:
    config = replace(HEAD, trainable_blocks=blocks)
    first = retraining(tiny_model, make_bars, None, config)
    curve = [first.prepare_training(), *(first.run_epoch().validation_accuracy for _ in range(3))]
    passed = ActivationCache()
    first.share_activations(passed)
    again = retraining(tiny_model, make_bars, passed, config)
    few = make_bars(40, 1).crops[:25]
    half = ActivationCache()
    half.store_activations(blocks, few, passed.completed(blocks, few, shades_of, "cpu"))
    other = retraining(tiny_model, make_bars, half, config)
    crops: list[int] = []
    tiny_model.blocks[0].register_forward_hook(lambda _module, images, _made: crops.append(len(images[0])))

    assert again.passed_crops == again.prepared_crops == 40 + 12 + 20
    assert [again.prepare_training(), *(again.run_epoch().validation_accuracy for _ in range(3))] == curve
    # One image more tells the size of the maps whose kernels are trained.
    assert sum(crops) == blocks
    assert other.passed_crops == 25
    other.prepare_training()
    assert sum(crops) == 40 + 12 + 20 - 25 + 2 * blocks
    assert [other.run_epoch().validation_accuracy for _ in range(3)] == pytest.approx(curve[1:], abs=0.051)


def test_activation_cache_reuse_costs_no_operations(tiny_model: EdgeModel, make_bars) -> None:
    every, passed = retraining_cost(retraining(tiny_model, make_bars, None)), ActivationCache()
    passed.store_activations(0, make_bars(40, 1).crops[:25], torch.zeros(25, 32))
    some = retraining_cost(retraining(tiny_model, make_bars, passed))
    first, again = (training_cost(HEAD, TrainingCrops(1, 0, 0, before), 32, "tiny") for before in (0, 1))
    of_one = first.preparation - again.preparation
    assert some == RetrainingCost(every.preparation - 25 * of_one, every.epoch, every.steps)
    assert 0 < of_one < first.preparation


@pytest.mark.parametrize("blocks", [0, 1])
def test_micro_profile_with_cache_promises_the_true_cost(
    tiny_model: EdgeModel, make_bars, blocks: int
) -> None:
    entered: list[int] = []

    @contextmanager
    def scope() -> Iterator[None]:
        entered.append(1)
        yield

    training, validation = make_bars(40, 1), make_bars(20, 2, first_track=500)
    passed = ActivationCache()
    config = replace(HEAD, trainable_blocks=blocks)
    trial = MicroProfile(
        start=tiny_model,
        family=config,
        training=training,
        validation=validation,
        exemplars=0,
        classes=tiny_model.classes,
        seed=3,
        clock=lambda: float(len(entered)),
        compute=Compute(scope=scope),
        passed=passed,
    )
    cost = trial.cost()
    trial.run()
    assert trial.cost() == cost, "what is tried passes, whatever was tried before"
    tried = int(passed.find_cached(blocks, concatenate([training, validation]).crops).sum())
    assert tried >= 16
    real = Retraining(
        tiny_model, config, RetrainingData(training, validation, tiny_model.classes, seed=3), passed=passed
    )
    assert real.passed_crops == tried
    assert trial.retraining_cost() == retraining_cost(real)
