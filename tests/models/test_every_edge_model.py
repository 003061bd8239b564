"""Tests that hold for every classifier, for retraining, profiling, checkpoints and the worlds."""

import numpy as np
import pytest
import torch
import torchvision
from executed_operations import executed_operations
from other_weights import changed, lived_in

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import CUTS, block_names
from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.checkpoints import from_bytes, from_torchvision, to_bytes
from ekya.models.edge.model import EdgeModel, build_edge_model, clone, pool, to_input
from ekya.models.edge.multi_model import BatchedPredictor, SharedTrunk
from ekya.models.edge.predictor import Predictor
from ekya.models.operations_counter import count_operations
from ekya.models.training.operations import (
    TrainingCrops,
    forward_operations,
    retraining_cost,
    training_cost,
)
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod

NAMES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
TOO_SLOW = "resnet101"
"""Not used for streams; the trainings of these tests would take ten times as long as a test may."""

STREAMS = [name for name in CUTS if name != TOO_SLOW]


@pytest.fixture(scope="module", autouse=True)
def counted() -> None:
    """Counts each architecture once, which takes most of a second, outside of the tests."""
    for name in STREAMS:
        for blocks in (0, 1):
            training_cost(RetrainConfig(1, 8, 0, blocks, 1.0), TrainingCrops(0, 1, 1), 32, name)


@pytest.fixture(scope="module")
def models() -> dict[str, EdgeModel]:
    """One model of each architecture, with statistics unlike fresh weights; tests must not change them."""
    return {name: lived_in(build_edge_model(NAMES, 0, seed=3, architecture=name)) for name in STREAMS}


def retraining(model: EdgeModel, make_bars, blocks: int, **more) -> Retraining:
    return Retraining(
        model,
        RetrainConfig(epochs=1, batch_size=4, head_width=0, trainable_blocks=blocks, data_fraction=1.0),
        RetrainingData(make_bars(6, 1), make_bars(3, 2, first_track=500), NAMES, seed=1),
        **more,
    )


def trained(model: EdgeModel, make_bars, blocks: int, **more) -> EdgeModel:
    run = retraining(model, make_bars, blocks, **more)
    run.prepare_training()
    run.run_epoch()
    return run.model()


def test_edge_model_names_its_blocks() -> None:
    for name in EDGE_MODELS:
        assert block_names(name)[0] == "stem"
        assert len(set(block_names(name))) == len(block_names(name)) >= 5


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("resolution", [16, 24, 32, 64])
def test_edge_model_maps_crops_of_any_size_to_logits(models, name: str, resolution: int) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (2, resolution, resolution, 3)).astype(np.uint8)
    with torch.inference_mode():
        features = pool(models[name].maps(to_input(crops, "cpu")))
        assert features.shape == (2, CUTS[name].features)
        assert models[name](to_input(crops, "cpu")).shape == (2, len(NAMES))


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_last_block_keeps_positions_at_32_pixels(models, name: str) -> None:
    """The last block of a ResNet sees one pixel; that of the smaller models sees 2 × 2."""
    images = torch.zeros(1, 3, 32, 32)
    with torch.inference_mode():
        for block in models[name].blocks:
            images = block(images)
    assert images.shape[2:] == ((1, 1) if name == "resnet18" else (2, 2))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("statistics", [False, True])
def test_edge_model_training_changes_trained_blocks_only(
    models, make_bars, name: str, statistics: bool
) -> None:
    after = trained(models[name], make_bars, 2, method=TrainingMethod(SgdRecipe(batch_statistics=statistics)))
    assert changed(models[name], after) == set(block_names(name)[-2:])
    assert not torch.equal(after.head.weight, models[name].head.weight)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_training_is_deterministic(models, make_bars, name: str) -> None:
    blocks = len(block_names(name))
    recipe = SgdRecipe(batch_statistics=True)
    once = trained(models[name], make_bars, blocks, method=TrainingMethod(recipe))
    again = trained(models[name], make_bars, blocks, method=TrainingMethod(recipe))
    assert changed(models[name], once) == set(block_names(name))
    assert not changed(once, again)
    assert torch.equal(once.head.weight, again.head.weight)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_head_training_keeps_all_blocks(models, make_bars, name: str) -> None:
    run = retraining(models[name], make_bars, 0)
    run.prepare_training()
    run.run_epoch()
    assert not changed(models[name], run.model())


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_folded_predicts_the_same(models, make_bars, name: str) -> None:
    crops = make_bars(4, 4).crops
    predictor = Predictor(models[name])
    left = [module for module in predictor.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert not left, "every normalisation is folded into its convolution"
    with torch.inference_mode():
        surest, best = models[name](to_input(crops, "cpu")).softmax(dim=1).max(dim=1)
    classes, confidence = predictor.predict(crops, 32)
    assert (classes.dtype, confidence.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(classes, best.numpy())
    np.testing.assert_allclose(confidence, surest.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_cut_anywhere_predicts_the_same(models, make_bars, name: str) -> None:
    crops = make_bars(3, 4).crops
    expected, _ = Predictor(models[name]).predict(crops, 32)
    for left in (0, 1, len(block_names(name))):
        shared = SharedTrunk.from_crops(models[name], left, crops, 32)
        np.testing.assert_array_equal(shared.predict(models[name]), expected)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_models_in_one_batch_predict_as_alone(models, make_bars, name: str) -> None:
    other = clone(models[name])
    with torch.no_grad():
        for weight in other.blocks[-2].parameters():
            weight.mul_(1.1)
    both, crops = (models[name], other), (make_bars(3, 4).crops, make_bars(2, 5).crops)
    if name == "shufflenet_v2_x1_0":
        with pytest.raises(ValueError, match="cannot be joined"):  # its channel shuffle does not allow it
            BatchedPredictor(both)
        return
    together = BatchedPredictor(both)
    assert together.shared_blocks == len(block_names(name)) - 2
    for model, own, found in zip(both, crops, together.predict(crops, 16), strict=True):
        classes, confidence = Predictor(model).predict(own, 16)
        np.testing.assert_array_equal(found[0], classes)
        np.testing.assert_allclose(found[1], confidence, atol=1e-5)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_checkpoint_round_trip_is_identical(models, name: str) -> None:
    back = from_bytes(to_bytes(models[name]))
    assert (back.architecture, back.classes) == (name, NAMES)
    assert not changed(models[name], back)
    assert torch.equal(back.head.weight, models[name].head.weight)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_operations_grow_with_the_blocks(name: str) -> None:
    costs = [
        training_cost(RetrainConfig(1, 8, 0, blocks, 1.0), TrainingCrops(0, 10, 2), 32, name).epoch
        for blocks in (0, 1)
    ]
    assert costs[0] < costs[1] < (3 * 10 + 2) * forward_operations(32, architecture=name)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x1_0"])
def test_edge_model_full_training_costs_three_passes(name: str) -> None:
    every = RetrainConfig(1, 8, 0, len(block_names(name)), 1.0)
    passes = (
        training_cost(every, TrainingCrops(0, 10, 0), 32, name).epoch
        / forward_operations(32, architecture=name)
        / 10
    )
    assert 2.5 < passes <= 3.0, "but for the first gradient, which nobody needs"


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_operations_grow_with_the_pixels(name: str) -> None:
    assert forward_operations(24, architecture=name) < forward_operations(32, architecture=name)


@pytest.mark.parametrize("name", STREAMS)
def test_edge_model_counted_operations_equal_executed_ones(models, make_bars, name: str) -> None:
    # Cards hold the rates of trainings with whole kernels.
    run = retraining(models[name], make_bars, 1, method=TrainingMethod(trim_kernels=False))
    with executed_operations() as preparing:
        run.prepare_training()
    with executed_operations() as training:
        run.run_epoch()
    cost = retraining_cost(run)
    assert (cost.preparation, cost.epoch) == (preparing.get_total_flops(), training.get_total_flops())


def test_operations_of_grouped_gradients_count_channels_of_a_group() -> None:
    counts = {}
    for groups in (1, 4):
        convolution = torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False)
        with count_operations(convolution) as counted:
            convolution(torch.ones(2, 8, 5, 5, requires_grad=True))
        counts[groups] = counted.forward + counted.backward
    assert counts == {1: 3 * 2 * 2 * 25 * 8 * 8 * 9, 4: 3 * 2 * 2 * 25 * 8 * 2 * 9}


@pytest.mark.parametrize("name", STREAMS)
def test_from_torchvision_takes_blocks_and_leaves_the_classifier(name: str, tmp_path) -> None:
    net = torchvision.models.get_model(name, weights=None).eval()
    loaded = from_torchvision(net.state_dict(), name, NAMES, 0, tmp_path / "w.pth")
    if CUTS[name].full_size is not None:  # our models keep the picture's size here
        net.get_submodule(CUTS[name].full_size).stride = (1, 1)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    inside = {}
    last = CUTS[name].blocks[block_names(name)[-1]][-1]
    net.get_submodule(last).register_forward_hook(lambda *given: inside.update(last=given[2]))
    with torch.inference_mode():
        net(images)
        torch.testing.assert_close(pool(loaded.maps(images)), inside["last"].mean(dim=(2, 3)))
    assert loaded.head.weight.shape == (len(NAMES), CUTS[name].features)


def test_from_torchvision_weights_of_other_model_are_refused(tmp_path) -> None:
    state = torchvision.models.resnet34(weights=None).state_dict()
    with pytest.raises(UserError, match=r"w\.pth.*'edge\.model'.*differences.*give weights of that model"):
        from_torchvision(state, "resnet18", NAMES, 0, tmp_path / "w.pth")
    with pytest.raises(UserError, match="differences"):
        from_torchvision({}, "mobilenet_v3_small", NAMES, 0, tmp_path / "w.pth")


def test_from_torchvision_own_architecture_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(EDGE_MODELS, "own", lambda: Trunk({"only": torch.nn.Conv2d(3, 4, 3)}, 4))
    with pytest.raises(UserError, match="none of torchvision's"):
        from_torchvision({}, "own", NAMES, 0, tmp_path / "w.pth")
