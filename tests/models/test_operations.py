import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from executed_operations import executed_operations

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel, adapt
from ekya.models.edge.predictor import Predictor
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.operations import (
    TrainingCrops,
    forward_operations,
    retraining_cost,
    training_cost,
)
from ekya.models.training.trainer import Compute, Retraining, RetrainingData, TrainingMethod

SIX = ("person", "car", "truck", "bus", "bicycle", "motorcycle")


def test_counting_does_not_load_the_compiler() -> None:
    code = (
        "import sys; from ekya.models.training.operations import forward_operations; forward_operations(32);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def counter_loaded() -> None:
    """Loads the counter, which imports half of torch's compiler, outside of the tests."""
    with executed_operations():
        torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()


@pytest.mark.parametrize(("trainable_blocks", "head_width"), [(0, 32), (1, 0), (3, 0), (5, 32)])
def test_training_cost_equals_operations_of_the_trainer(
    fresh_model: EdgeModel, make_bars, trainable_blocks: int, head_width: int
) -> None:
    start = adapt(fresh_model, SIX, head_width, seed=0)
    memory = ExemplarMemory(3).update_exemplars(make_bars(5, 3, first_track=900))
    config = RetrainConfig(1, 8, head_width, trainable_blocks, 1.0)
    retraining = Retraining(
        start,
        config,
        RetrainingData(make_bars(6, 1), make_bars(3, 2, first_track=500), SIX, memory=memory, seed=1),
        # Cards hold the rates of trainings with whole kernels.
        method=TrainingMethod(trim_kernels=False),
    )
    with executed_operations() as preparing:
        retraining.prepare_training()
    with executed_operations() as training:
        retraining.run_epoch()
    cost = retraining_cost(retraining)
    assert (cost.preparation, cost.epoch) == (preparing.get_total_flops(), training.get_total_flops())


@pytest.mark.parametrize("resolution", [16, 32])
def test_forward_operations_equal_those_of_inference(
    fresh_model: EdgeModel, make_bars, resolution: int
) -> None:
    predictor = Predictor(adapt(fresh_model, SIX, 0, seed=0))
    with executed_operations() as counter:
        predictor.predict(make_bars(5, 1).crops, resolution)
    assert counter.get_total_flops() == 5 * forward_operations(resolution)


@pytest.mark.parametrize("crops", [1, 2, 8, 9, 10, 16, 17, 24])
def test_retraining_cost_steps_are_the_batches_of_an_epoch(
    fresh_model: EdgeModel, make_bars, crops: int
) -> None:
    start = adapt(fresh_model, SIX, 0, seed=0)
    training = make_bars(crops, 6)
    config = RetrainConfig(1, 8, 0, 0, 1.0)
    entered = []

    @contextmanager
    def counted() -> Iterator[None]:
        entered.append(1)
        yield

    held = training.select_rows(np.arange(0))
    retraining = Retraining(
        start, config, RetrainingData(training, held, SIX, seed=1), Compute(scope=counted)
    )
    retraining.prepare_training()
    entered.clear()
    retraining.run_epoch()
    assert retraining_cost(retraining).steps == len(entered)
    assert steps_in_epoch(0, 8) == 0


def test_training_cost_falls_with_frozen_blocks() -> None:
    costs = [
        training_cost(RetrainConfig(1, 8, 0, blocks, 1.0), TrainingCrops(0, 10, 2), 32).epoch
        for blocks in range(6)
    ]
    assert costs == sorted(set(costs))
