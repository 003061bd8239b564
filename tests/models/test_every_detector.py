"""Tests that hold for every detector that is an edge model, on drawn frames."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_scenes import SIDE, scenes
from executed_operations import executed_operations
from other_weights import OUTPUTS, changed, every_detector_lived_in, freed_with_predictor, same_weights
from other_weights import retrained as other_weights
from torch import nn

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family
from ekya.fleet.run.link_sizes import sizes_with
from ekya.models.edge.architecture_table import DETECTORS, Task, block_names, task_of
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import found_in
from ekya.models.edge.footprint import footprint_of
from ekya.models.edge.forward import ONNXRUNTIME, PLAIN, TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, adapt, build_edge_model, clone, to_input
from ekya.models.edge.multi_model import Predictors
from ekya.models.edge.predictor import prepared
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import LabelledFrames, split_by_time
from ekya.models.training.microprofile import SUBSET_EPOCHS, MicroProfile
from ekya.models.training.operations import (
    TrainingCrops,
    forward_operations,
    retraining_cost,
    training_cost,
)
from ekya.models.training.optimizer import AdamWRecipe
from ekya.models.training.trainer import Compute, Retraining, RetrainingData, TrainingMethod

EVERY = sorted(DETECTORS)
GAMMA = RetrainConfig(epochs=1, batch_size=4, head_width=0, trainable_blocks=1, data_fraction=1.0)

FEW_OR_ALL = {name: (0, 1, len(block_names(name))) for name in EVERY}
"""Numbers of trained blocks, for which each architecture is counted."""

every_detector = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(scope="module", autouse=True)
def counted() -> None:
    """Counts each architecture once, which takes most of a second, outside of the tests."""
    for name in EVERY:
        for blocks in FEW_OR_ALL[name]:
            training_cost(replace(GAMMA, trainable_blocks=blocks), TrainingCrops(0, 1, 1), SIDE, name)
            footprint_of(Family(blocks, 0, 4), SIDE, name)


@pytest.fixture(scope="module")
def models() -> dict[str, EdgeModel]:
    """One of each architecture; tests must not change them."""
    return every_detector_lived_in()


@pytest.fixture(scope="module")
def training() -> LabelledFrames:
    return scenes(6, 1)


@pytest.fixture(scope="module")
def validation() -> LabelledFrames:
    return scenes(3, 2, first_track=500)


@pytest.fixture
def retraining(models, training, validation):
    """Returns retrainings of a model on few frames."""

    def of(name: str, blocks: int = 1, epochs: int = 1, memory=None, seed: int = 1, **more) -> Retraining:
        return Retraining(
            models[name],
            replace(GAMMA, trainable_blocks=blocks, epochs=epochs),
            RetrainingData(training, validation, OUTPUTS, memory, seed),
            **more,
        )

    return of


def trained(run: Retraining) -> tuple[EdgeModel, list[float]]:
    """Returns the model and the losses of all epochs."""
    run.prepare_training()
    losses = []
    while not run.done:
        losses.append(run.run_epoch().training_loss)
    return run.model(), losses


def equal(a: EdgeModel, b: EdgeModel) -> bool:
    return not changed(a, b) and same_weights(a.head, b.head)


@every_detector
def test_detector_maps_frames_of_any_side_to_boxes(models, name: str) -> None:
    assert task_of(name) is Task.DETECT
    for side in (64, 96):
        images = np.random.default_rng(0).integers(0, 256, (2, side, side, 3)).astype(np.uint8)
        with torch.inference_mode():
            outputs = models[name](to_input(images, "cpu"))
            decoded = models[name].detector.decode_outputs(outputs)
            maps = models[name].maps(to_input(images, "cpu"))
        assert maps.shape[:2] == (2, models[name].features)
        count = decoded.boxes.shape[1]
        assert decoded.boxes.shape == (2, count, 4)
        assert decoded.scores.shape == decoded.outputs.shape == (2, count)
        assert (decoded.boxes[..., 2:] >= decoded.boxes[..., :2]).all()
        assert ((decoded.scores >= 0.0) & (decoded.scores <= 1.0)).all()
        assert set(decoded.outputs.unique().tolist()) <= set(range(len(OUTPUTS)))


@every_detector
def test_detector_answers_alike_in_both_engines(models, name: str) -> None:
    fast, exact = (DetectorPredictor(models[name], way=way) for way in (PLAIN, ForwardWay(engine=TORCH)))
    assert (fast.way.engine, exact.way.engine) == (ONNXRUNTIME, TORCH)
    for side in (64, 96):
        images = np.random.default_rng(side).integers(0, 256, (1, side, side, 3)).astype(np.uint8)
        found, expected = fast.predict(images, side), exact.predict(images, side)
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-4)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)


@every_detector
@pytest.mark.parametrize("engine", [ONNXRUNTIME, TORCH])
def test_detector_predictor_answers_a_frame_alike_in_any_batch(
    models, training, name: str, engine: str
) -> None:
    one_by_one, in_batches = (
        DetectorPredictor(models[name], way=ForwardWay(engine=engine, images_a_pass=images))
        for images in (1, 4)
    )
    alone, together = (of.predict(training.images, SIDE) for of in (one_by_one, in_batches))
    np.testing.assert_allclose(together.boxes, alone.boxes, atol=1e-5)
    np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
    in_fleet = np.arange(len(OUTPUTS))
    objects = [found_in(of, in_fleet) for of in (together, alone)]
    assert any(len(found.classes) for found in objects[0])
    for found, expected in zip(*objects, strict=True):
        np.testing.assert_array_equal(found.classes, expected.classes)


@every_detector
def test_detector_predictors_share_blocks_that_no_retraining_changed(models, training, name: str) -> None:
    predictors = Predictors()
    before = predictors.predictor_for(models[name])
    after = from_bytes(to_bytes(other_weights(models[name], 2, 1)))
    made = predictors.predictor_for(after)
    same = [one is other for one, other in zip(before.model.blocks, made.model.blocks, strict=True)]
    assert same == [True] * (len(block_names(name)) - 2) + [False] * 2
    found, expected = (of.predict(training.images, SIDE) for of in (made, DetectorPredictor(after)))
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.boxes, expected.boxes)


@every_detector
def test_detector_predictor_deleted_frees_its_weights_immediately(models, name: str) -> None:
    assert freed_with_predictor(lambda: DetectorPredictor(models[name]))


@every_detector
def test_detector_of_one_seed_has_one_set_of_weights(name: str) -> None:
    first = build_edge_model(OUTPUTS, 0, seed=4, architecture=name)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = build_edge_model(OUTPUTS, 0, seed=4, architecture=name)
    assert equal(first, again)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not equal(first, build_edge_model(OUTPUTS, 0, seed=5, architecture=name))


@every_detector
@pytest.mark.parametrize("statistics", [False, True])
def test_detector_training_changes_trained_blocks_only(
    models, retraining, name: str, statistics: bool
) -> None:
    before = {key: tensor.clone() for key, tensor in models[name].state_dict().items()}
    recipe = AdamWRecipe(batch_statistics=statistics)
    after, _ = trained(retraining(name, 2, method=TrainingMethod(recipe)))
    assert changed(models[name], after) == set(block_names(name)[-2:])
    assert not same_weights(models[name].head, after.head)
    assert all(torch.equal(before[key], tensor) for key, tensor in models[name].state_dict().items())
    norms = [part for part in after.blocks[-1].modules() if isinstance(part, nn.BatchNorm2d)]
    moved = {bool(norm.num_batches_tracked > 0) for norm in norms}
    assert moved == {statistics}


@every_detector
def test_detector_models_of_a_retraining_share_frozen_weights_only(retraining, name: str) -> None:
    run = retraining(name, 2, 2)
    run.prepare_training()
    run.run_epoch()
    kept = run.model()
    before, first, second = clone(kept), kept.state_dict(), run.model().state_dict()
    frozen = tuple(f"blocks.{block}." for block in range(len(block_names(name)) - 2))
    shared = {key for key in first if first[key].data_ptr() == second[key].data_ptr()}
    assert shared == {key for key in first if key.startswith(frozen)}
    run.run_epoch()
    assert equal(kept, before)
    assert not equal(kept, run.model())


@every_detector
def test_detector_retraining_enters_the_scope_for_every_batch(retraining, name: str) -> None:
    """A share is changed, and a training paused or stopped, between two of them."""
    entered: list[int] = []

    @contextmanager
    def scope() -> Iterator[None]:
        entered.append(1)
        yield

    run = retraining(name, 1, 2, compute=Compute(scope=scope))
    run.prepare_training()
    assert len(entered) == 2 + 1 + 1  # frozen part of both sets, teacher, validation
    run.run_epoch()
    assert len(entered) == 4 + 2 + 1  # 4 and 2 frames, then validation


@every_detector
def test_detector_clone_is_independent(models, name: str) -> None:
    copied, other = clone(models[name]), clone(models[name])
    assert equal(models[name], copied)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.add_(1.0)
    assert equal(models[name], other)
    assert changed(models[name], copied) == set(block_names(name))


@every_detector
def test_detector_head_training_keeps_all_blocks(models, retraining, name: str) -> None:
    after, _ = trained(retraining(name, 0))
    assert not changed(models[name], after)
    assert not same_weights(models[name].head, after.head)


@every_detector
def test_detector_training_is_deterministic(models, retraining, name: str) -> None:
    blocks = len(block_names(name))
    method = TrainingMethod(AdamWRecipe(batch_statistics=True))
    runs = []
    for noise in range(2):
        torch.manual_seed(noise)  # global generators must not matter
        runs.append(trained(retraining(name, blocks, method=method)))
    assert changed(models[name], runs[0][0]) == set(block_names(name))
    assert equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@every_detector
def test_detector_training_with_more_epochs_begins_like_fewer(retraining, name: str) -> None:
    short, long = retraining(name, 1, 2), retraining(name, 1, 3)
    (model, losses), _ = trained(short), long.prepare_training()
    assert [long.run_epoch().training_loss for _ in losses] == losses
    assert equal(long.model(), model)


@every_detector
@pytest.mark.parametrize("blocks", [0, 2])
def test_detector_training_on_kept_activations_is_the_same(
    models, retraining, training, name: str, blocks: int
) -> None:
    memory = ExemplarMemory(4).update_exemplars(scenes(6, 5, first_track=900))
    model, losses = trained(retraining(name, blocks, 2, memory))
    uncached = retraining(name, blocks, 2, memory, method=TrainingMethod(keep_activations=False))
    other, nearly = trained(uncached)
    assert nearly == pytest.approx(losses, rel=1e-3)
    assert changed(models[name], other) == changed(models[name], model)


@every_detector
@pytest.mark.parametrize("blocks", [0, 2])
def test_detector_retraining_continues_elsewhere_from_a_snapshot_bit_for_bit(
    models, retraining, name: str, blocks: int
) -> None:
    whole, first, rest, home = (retraining(name, blocks, epochs=3) for _ in range(4))
    for run in (whole, first, rest):
        run.prepare_training()
    results = [whole.run_epoch() for _ in range(3)]
    assert first.run_epoch() == results[0]
    assert rest.restore_snapshot(first.take_snapshot()) == results[0].validation_accuracy
    assert [rest.run_epoch(), rest.run_epoch()] == results[1:]
    snapshot, expected = rest.take_snapshot(), whole.model()
    assert not equal(expected, models[name])
    for model in (rest.model(), home.model_of_snapshot(snapshot)):
        assert equal(model, expected)
        assert model.threshold == expected.threshold
    sizes = sizes_with(models[name], SIDE, len(OUTPUTS))
    expected_mb = sizes.snapshot_mb(replace(GAMMA, trainable_blocks=blocks))
    # There are also names, and statistics of the normalisation.
    assert len(snapshot) / 1e6 == pytest.approx(expected_mb, rel=0.15)


@every_detector
def test_detector_training_in_half_precision_keeps_weights_of_32_bits(retraining, name: str) -> None:
    _, whole = trained(retraining(name, 2))
    model, half = trained(retraining(name, 2, compute=Compute(precision=torch.bfloat16)))
    assert half == pytest.approx(whole, rel=0.2)
    assert half != whole
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}


@every_detector
@pytest.mark.parametrize("blocks", [0, 2])
def test_detector_training_lowers_the_loss_of_a_frame_it_repeats(
    models, training, name: str, blocks: int
) -> None:
    one = training.select_rows(np.array([1, 1, 1, 1]))
    run = Retraining(
        models[name],
        replace(GAMMA, trainable_blocks=blocks, epochs=12),
        RetrainingData(one, one.select_rows(np.arange(0)), OUTPUTS, seed=1),
        method=TrainingMethod(AdamWRecipe(5e-3, 5e-3), distillation_weight=0.0),
    )
    _, losses = trained(run)
    assert min(losses[-3:]) < 0.8 * losses[0]


@every_detector
def test_detector_checkpoint_round_trip_is_identical(models, name: str) -> None:
    back = from_bytes(to_bytes(models[name]))
    assert (back.architecture, back.classes) == (name, OUTPUTS)
    assert equal(models[name], back)
    assert type(back.detector) is type(models[name].detector)


@every_detector
def test_detector_keeps_its_threshold_wherever_it_is_copied(models, name: str) -> None:
    model = clone(models[name])
    model.threshold = 0.37
    ways = (
        clone(model),
        adapt(model, ("car", "bus"), 0, seed=9),
        from_bytes(to_bytes(model, half=True)),
    )
    assert [one.threshold for one in ways] == [0.37] * len(ways)


@every_detector
def test_detector_stored_in_half_precision_answers_nearly_the_same(models, training, name: str) -> None:
    whole, half = models[name], from_bytes(to_bytes(models[name], half=True))
    assert {tensor.dtype for tensor in half.parameters()} == {torch.float32}
    images = to_input(training.images, "cpu")
    with torch.inference_mode():
        expected, found = (of.detector.decode_outputs(of(images)) for of in (whole, half))
    torch.testing.assert_close(found.boxes, expected.boxes, atol=0.01, rtol=0)
    torch.testing.assert_close(found.scores, expected.scores, atol=0.01, rtol=0)


@every_detector
def test_retrained_detector_checkpoint_answers_the_same(retraining, training, name: str) -> None:
    model, _ = trained(retraining(name, 2))
    images = to_input(training.images, "cpu")
    with torch.inference_mode():
        outputs = [of(images) for of in (model, from_bytes(to_bytes(model)), prepared(model, "cpu", PLAIN))]
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(outputs[2], outputs[0], atol=1e-3, rtol=1e-3)


@every_detector
def test_detector_prepared_for_inference_has_no_normalisation_left(models, name: str) -> None:
    folded = prepared(models[name], "cpu", PLAIN)
    assert not [part for part in folded.modules() if isinstance(part, nn.BatchNorm2d)]
    assert [part for part in models[name].modules() if isinstance(part, nn.BatchNorm2d)]


@every_detector
def test_adapt_keeps_the_heads_of_a_detector(models, name: str) -> None:
    for classes, width in ((OUTPUTS, 0), (("car", "bus"), 0), (OUTPUTS, 16)):
        adapted = adapt(models[name], classes, width, seed=9)
        assert adapted.classes == OUTPUTS
        assert equal(models[name], adapted)


@every_detector
def test_detector_operations_grow_with_the_blocks(name: str) -> None:
    costs = [
        training_cost(replace(GAMMA, trainable_blocks=blocks), TrainingCrops(0, 10, 2), SIDE, name).epoch
        for blocks in FEW_OR_ALL[name]
    ]
    assert costs[0] > 0
    assert costs == sorted(set(costs))
    assert costs[-1] < (3 * 10 + 2) * forward_operations(SIDE, architecture=name)


@every_detector
def test_detector_operations_grow_with_the_pixels(name: str) -> None:
    small, large = (forward_operations(side, architecture=name) for side in (SIDE, 2 * SIDE))
    assert large / small == pytest.approx(4, rel=0.2)


@every_detector
@pytest.mark.parametrize("blocks", [0, 1])
def test_detector_counted_operations_equal_executed_ones(name: str, blocks: int) -> None:
    """The count has COCO's 80 classes, as published weights do."""
    classes = tuple(str(index) for index in range(80))
    frames = replace(scenes(5, 1), names=classes[:2])
    run = Retraining(
        build_edge_model(classes, 0, 1, name),
        replace(GAMMA, trainable_blocks=blocks),
        RetrainingData(frames.select_rows(np.arange(4)), frames.select_rows(np.array([4])), classes, seed=1),
    )
    with executed_operations() as preparing:
        run.prepare_training()
    with executed_operations() as training:
        run.run_epoch()
    cost = retraining_cost(run)
    assert cost.preparation == preparing.get_total_flops()
    assert cost.epoch == pytest.approx(training.get_total_flops(), rel=1e-3)


@every_detector
def test_detector_footprint_grows_with_side_and_blocks(name: str) -> None:
    each = [footprint_of(Family(blocks, 0, 4), SIDE, name) for blocks in FEW_OR_ALL[name]]
    assert min(each[0].saved_bytes, each[0].trained_bytes, each[0].boundary_bytes) > 0
    assert [of.trained_bytes for of in each] == sorted({of.trained_bytes for of in each})
    assert [of.saved_bytes for of in each] == sorted({of.saved_bytes for of in each})
    assert len({of.model_bytes for of in each}) == 1
    large = footprint_of(Family(1, 0, 4), 2 * SIDE, name)
    for small, grown in (
        (each[1].input_bytes, large.input_bytes),
        (each[1].boundary_bytes, large.boundary_bytes),
        (each[1].saved_bytes, large.saved_bytes),
        (each[1].passing_bytes, large.passing_bytes),
    ):
        assert 3 < grown / small <= 4.5
    assert each[-1].boundary_bytes == each[-1].input_bytes


@every_detector
def test_exemplar_memory_of_a_detector_keeps_to_its_budget(models, name: str) -> None:
    memory = ExemplarMemory(5)
    for window in range(2):
        seen = scenes(6, window, first_track=100 * window)
        memory, again = (
            memory.update_exemplars(seen),
            memory.update_exemplars(seen),
        )
        kept, same = memory.exemplars(), again.exemplars()
        assert np.array_equal(kept.images, same.images)
        assert len({image.tobytes() for image in kept.images}) == memory.size <= 5
        assert {index for of in kept.objects for index in of.classes.tolist()} == {0, 1}


@pytest.fixture
def trial(models):
    """Returns micro-profiles of 12 frames; each reading of the clock adds half a second."""
    frames = scenes(12, 8)
    ticks = itertools.count()

    def of(name: str, blocks: int) -> MicroProfile:
        parts = split_by_time(frames, 0.25)
        family = replace(GAMMA, trainable_blocks=blocks, epochs=30, data_fraction=0.1)
        clock = lambda: 0.5 * next(ticks)  # noqa: E731
        return MicroProfile(models[name], family, *parts, 0, OUTPUTS, 1, clock)

    return of


@every_detector
@pytest.mark.parametrize("blocks", [0, 1])
def test_micro_profile_of_a_detector_gives_a_curve(trial, name: str, blocks: int) -> None:
    charged: list[int] = []

    def charge(epoch: int) -> bool:
        charged.append(epoch)
        return True

    tried = trial(name, blocks)
    cost = tried.cost()
    curve = tried.run(charge)
    assert len(curve.accuracies) == SUBSET_EPOCHS + 1
    assert all(0.0 <= of <= 1.0 for of in curve.accuracies)
    assert charged == list(range(SUBSET_EPOCHS + 1))
    assert curve.epoch_gpu_s > 0.0
    assert curve.fixed_prepare_gpu_s + curve.prepare_gpu_s > 0.0
    assert cost.preparation > 0
    assert cost.epoch > 0
