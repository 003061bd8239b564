import numpy as np
import pytest
import torch

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.training.optimizer import SgdRecipe, optimizer_of
from ekya.models.training.trainee import Trainee
from ekya.models.training.trimmed_kernels import TrimmedConvolution

NAMES = ("person", "car", "bus")
TWO_BLOCKS = RetrainConfig(epochs=1, batch_size=4, head_width=0, trainable_blocks=2, data_fraction=1.0)
RECIPE = SgdRecipe(weight_decay=0.0)
"""Decay would also shrink what lies beside the maps, which is of no consequence for any output."""


def trained(start: EdgeModel, crops, side: int | None) -> tuple[Trainee, torch.Tensor]:
    """Returns a trainee after three steps, and its outputs."""
    trainee = Trainee(start, TWO_BLOCKS, NAMES, 0, side=side)
    goal, inputs = trainee.goal(crops), trainee.inputs_of(crops.images)
    lesson, optimizer = trainee.lesson(inputs, goal, 0.5), optimizer_of(trainee.suffix, RECIPE)
    optimizer.set_rates(16, 0)
    for batch in torch.arange(12).split(4):
        lesson.compute_gradient(batch)
        optimizer.take_step()
    return trainee, trainee.answers(inputs)


@pytest.mark.parametrize("architecture", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0"])
def test_trimmed_kernels_train_to_the_same_model(architecture, make_bars):
    start = build_edge_model(NAMES, 0, 3, architecture)
    crops = make_bars(12, 1)
    whole, outputs = trained(start, crops, None)
    trimmed, of_trimmed = trained(start, crops, crops.side)
    torch.testing.assert_close(of_trimmed, outputs, rtol=1e-3, atol=1e-4)
    expected = whole.model().state_dict()
    for name, weight in trimmed.model().state_dict().items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4, msg=name)


def test_weights_beside_the_maps_are_not_trained_and_stay(make_bars):
    start = build_edge_model(NAMES, 0, 3, "resnet18")
    crops = make_bars(12, 1)
    trainee, _ = trained(start, crops, crops.side)
    trimmed = {
        name: one for name, one in trainee.suffix.named_modules() if isinstance(one, TrimmedConvolution)
    }
    # The last stage: one kernel on maps of 2x2 pixels, three on single ones.
    assert sorted(one.weight.shape[2:].numel() for one in trimmed.values()) == [1, 1, 1, 4]
    before, after = start.blocks[-1][1].conv2.weight, trainee.model().blocks[-1][1].conv2.weight
    moved = (before != after).float().mean(dim=(0, 1))
    assert moved[1, 1] > 0.1
    assert np.delete(moved.flatten().numpy(), 4).max() == 0.0


def test_maps_of_larger_images_are_trained_with_whole_kernels():
    trainee = Trainee(build_edge_model(NAMES, 0, 3, "resnet18"), TWO_BLOCKS, NAMES, 0, side=96)
    assert not any(isinstance(one, TrimmedConvolution) for one in trainee.suffix.modules())
