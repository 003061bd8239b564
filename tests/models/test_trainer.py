from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ekya.core.configs import RetrainConfig, crops_in_epoch
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import accuracy
from ekya.models.training.epochs import batches_of
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import class_mix_weights
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.trainer import (
    Compute,
    Retraining,
    RetrainingData,
    TrainingMethod,
    fraction_of_tracks,
)

LAST_BLOCK = RetrainConfig(epochs=8, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=1.0)

QUICK = SgdRecipe(learning_rate=0.03, head_learning_rate=0.1)
"""Random features of a tiny model need larger steps than a real one."""


def retrained(
    start: EdgeModel,
    config: RetrainConfig,
    training,
    validation,
    *,
    memory=None,
    classes=None,
    precision=torch.float32,
    **method,
) -> tuple[EdgeModel, list[float]]:
    data = RetrainingData(training, validation, classes or start.classes, memory=memory, seed=3)
    retraining = Retraining(
        start, config, data, Compute(precision=precision), TrainingMethod(QUICK, **method)
    )
    curve = [retraining.prepare_training()]
    while not retraining.done:
        curve.append(retraining.run_epoch().validation_accuracy)
    return retraining.model(), curve


def weights(model: EdgeModel) -> dict[str, torch.Tensor]:
    return model.state_dict()


@pytest.mark.parametrize(
    "config",
    [LAST_BLOCK, replace(LAST_BLOCK, trainable_blocks=0, epochs=30), replace(LAST_BLOCK, head_width=16)],
    ids=["last block", "head only", "hidden layer"],
)
def test_retraining_learns_and_keeps_frozen_blocks(
    tiny_model: EdgeModel, make_bars, config: RetrainConfig
) -> None:
    training, validation = make_bars(64, 1), make_bars(30, 2, first_track=500)
    before = {name: tensor.clone() for name, tensor in weights(tiny_model).items()}
    model, curve = retrained(tiny_model, config, training, validation)
    assert curve[-1] >= (0.7 if config.trainable_blocks == 0 else 0.9)  # random features are weak
    mix = class_mix_weights(training.classes, validation.classes)
    assert accuracy(model, validation, mix) == pytest.approx(curve[-1])
    frozen = len(tiny_model.blocks) - config.trainable_blocks
    after = weights(model)
    for name, tensor in before.items():
        place = name.split(".")
        if place[0] == "blocks" and int(place[1]) < frozen:
            assert torch.equal(after[name], tensor), name
        assert torch.equal(weights(tiny_model)[name], tensor), "the start model must stay as it is"
    assert all(
        torch.equal(after[name], before[name]) == (frozen == 5)
        for name in after
        if "blocks.4.0.weight" in name
    )


def test_retraining_with_equal_seed_gives_equal_weights(tiny_model: EdgeModel, make_bars) -> None:
    memory = ExemplarMemory(12).update_exemplars(make_bars(20, 5, first_track=900))
    config = replace(LAST_BLOCK, epochs=2, data_fraction=0.5)
    models = []
    for noise in range(2):
        torch.manual_seed(noise)  # global generators must not matter
        models.append(retrained(tiny_model, config, make_bars(40, 1), make_bars(10, 2), memory=memory)[0])
    first, second = map(weights, models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_retraining_with_more_epochs_begins_like_fewer(tiny_model: EdgeModel, make_bars) -> None:
    head = replace(LAST_BLOCK, trainable_blocks=0, epochs=3)
    short = retrained(tiny_model, head, make_bars(40, 1), make_bars(30, 2))[1]
    long = retrained(tiny_model, replace(head, epochs=9), make_bars(40, 1), make_bars(30, 2))[1]
    assert long[: len(short)] == short


def test_retraining_learns_a_new_class_and_keeps_old_ones(tiny_model: EdgeModel, make_bars) -> None:
    names = tiny_model.classes
    old = make_bars(64, 1, classes=(0, 1))
    two, _ = retrained(tiny_model, LAST_BLOCK, old, make_bars(20, 2, (0, 1), 500), classes=names[:2])
    memory = ExemplarMemory(20).update_exemplars(old)
    new = make_bars(40, 3, classes=(2,), first_track=1000)
    model, _ = retrained(two, LAST_BLOCK, new, make_bars(10, 4, (2,), 2000), memory=memory, classes=names)
    assert accuracy(model, make_bars(40, 5, classes=(2,))) >= 0.9
    assert accuracy(model, make_bars(40, 6, classes=(0, 1))) >= 0.9
    without, _ = retrained(
        two, LAST_BLOCK, new, make_bars(10, 4, (2,), 2000), classes=names, distillation_weight=0.0
    )
    assert accuracy(without, make_bars(40, 6, classes=(0, 1))) < 0.5


def test_retraining_enters_the_scope_for_every_batch(tiny_model: EdgeModel, make_bars) -> None:
    entered: list[int] = []

    @contextmanager
    def scope() -> Iterator[None]:
        entered.append(1)
        yield

    config = replace(LAST_BLOCK, trainable_blocks=0)
    retraining = Retraining(
        tiny_model,
        config,
        RetrainingData(make_bars(33, 1), make_bars(10, 2, first_track=500), tiny_model.classes, seed=1),
        Compute(scope=scope),
    )
    retraining.prepare_training()
    assert len(entered) == 2 + 1 + 2 + 1  # frozen part of both sets, teacher, validation
    retraining.run_epoch()
    assert len(entered) == 6 + 2 + 1  # 16 and 17 crops, then validation


def test_retraining_checkpoint_is_independent_of_later_epochs(tiny_model: EdgeModel, make_bars) -> None:
    retraining = Retraining(
        tiny_model,
        replace(LAST_BLOCK, trainable_blocks=0),
        RetrainingData(make_bars(20, 1), make_bars(10, 2, first_track=500), tiny_model.classes, seed=1),
    )
    retraining.prepare_training()
    checkpoint = retraining.model()
    before = checkpoint.head.weight.clone()
    retraining.run_epoch()
    assert torch.equal(checkpoint.head.weight, before)
    assert not torch.equal(retraining.model().head.weight, before)


def test_usable_exemplars_leave_out_validation_objects(tiny_model: EdgeModel, make_bars) -> None:
    seen = make_bars(40, 1)
    memory = ExemplarMemory(40).update_exemplars(seen)
    retraining = Retraining(
        tiny_model,
        LAST_BLOCK,
        RetrainingData(
            make_bars(40, 2, first_track=500),
            seen.select_rows(np.flatnonzero(seen.tracks < 5)),
            tiny_model.classes,
            memory=memory,
            seed=1,
        ),
    )
    exemplars = memory.exemplars()
    assert exemplars is not None
    assert retraining.prepared_crops == 40 + 10 + int((exemplars.tracks >= 5).sum())


def test_batches_of_leave_no_crop_alone_and_lose_none() -> None:
    for count in range(1, 40):
        order = np.random.default_rng(count).permutation(count)
        batches = batches_of(order, 4)
        assert min(len(batch) for batch in batches) >= 2
        assert set(np.concatenate(batches)) == set(range(count))


def test_fraction_of_tracks_takes_whole_tracks(make_bars) -> None:
    crops = make_bars(80, 1)
    half = fraction_of_tracks(crops, 0.5, seed=1)
    assert len(half) == 40
    assert len(np.unique(half.tracks)) == 20
    assert not np.array_equal(half.tracks, fraction_of_tracks(crops, 0.5, seed=2).tracks)
    assert len(fraction_of_tracks(crops, 0.001, seed=1)) == 2


def test_epoch_replay_is_bounded_by_the_fresh_crops() -> None:
    assert crops_in_epoch(80, 120) == 120
    assert crops_in_epoch(80, 10) == 90


def test_retraining_without_labels_is_refused(tiny_model: EdgeModel, make_bars) -> None:
    none = make_bars(2, 1).select_rows(np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="training crop"):
        Retraining(tiny_model, LAST_BLOCK, RetrainingData(none, none, ("a",), seed=1))


def test_retraining_keeps_frozen_statistics(fresh_model: EdgeModel, make_bars) -> None:
    config = replace(LAST_BLOCK, epochs=1, trainable_blocks=1)
    model, _ = retrained(fresh_model, config, make_bars(16, 1), make_bars(4, 2, first_track=500))
    before, after = weights(fresh_model), weights(model)
    changed = {".".join(name.split(".")[:2]) for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"blocks.4", "head.weight", "head.bias"}


@pytest.mark.parametrize("trainable_blocks", [0, 1])
def test_retraining_models_share_frozen_weights_only(
    tiny_model: EdgeModel, make_bars, trainable_blocks: int
) -> None:
    retraining = Retraining(
        tiny_model,
        replace(LAST_BLOCK, trainable_blocks=trainable_blocks),
        RetrainingData(make_bars(20, 1), make_bars(10, 2, first_track=500), tiny_model.classes, seed=1),
    )
    retraining.prepare_training()
    first, second = retraining.model().state_dict(), retraining.model().state_dict()
    frozen = tuple(f"blocks.{block}." for block in range(len(tiny_model.blocks) - trainable_blocks))
    shared = {name for name in first if first[name].data_ptr() == second[name].data_ptr()}
    assert shared == {name for name in first if name.startswith(frozen)}


class NumbersAsked(TorchDispatchMode):
    """Counts reads of a tensor's value on the host, which stall a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("trainable_blocks", [0, 1])
def test_retraining_steps_never_wait_for_the_device(
    tiny_model: EdgeModel, make_bars, trainable_blocks: int
) -> None:
    retraining = Retraining(
        tiny_model,
        replace(LAST_BLOCK, trainable_blocks=trainable_blocks),
        RetrainingData(make_bars(64, 1), make_bars(10, 2, first_track=500), tiny_model.classes, seed=1),
    )
    retraining.prepare_training()
    with NumbersAsked() as asked:
        result = retraining.run_epoch()
        assert asked.count == 0
        float(torch.ones(1))
    assert asked.count == 1, "what is counted is what is meant"
    assert result.training_loss > 0.0


@pytest.mark.parametrize("trainable_blocks", [0, 1, 3])
def test_retraining_without_kept_activations_learns_the_same(
    tiny_model: EdgeModel, make_bars, trainable_blocks: int
) -> None:
    memory = ExemplarMemory(12).update_exemplars(make_bars(20, 5, first_track=900))
    config = replace(LAST_BLOCK, trainable_blocks=trainable_blocks)
    passed: list[int] = []
    first = tiny_model.blocks[0]
    first.register_forward_hook(lambda _module, images, _made: passed.append(len(images[0])))
    curves, crops = [], []
    for kept in (True, False):
        passed.clear()
        _, curve = retrained(
            tiny_model,
            config,
            make_bars(40, 1),
            make_bars(30, 2, first_track=500),
            memory=memory,
            keep_activations=kept,
        )
        curves.append(curve)
        crops.append(sum(passed))
    assert curves[0] == curves[1]
    # With kept activations one pass; without, a pass of the teacher before training and one in each epoch.
    # One image more tells the size of the maps whose kernels are trained.
    sized = int(config.trainable_blocks > 0)
    assert crops == [sized + 40 + 12 + 30, sized + 40 + 12 + 30 + config.epochs * (40 + 12 + 30)]


@pytest.mark.parametrize("trainable_blocks", [0, 1])
def test_retraining_in_half_precision_keeps_weights_of_32_bits(
    tiny_model: EdgeModel, make_bars, trainable_blocks: int
) -> None:
    config = replace(LAST_BLOCK, trainable_blocks=trainable_blocks, epochs=16)
    training, validation = make_bars(64, 1), make_bars(30, 2, first_track=500)
    whole = retrained(tiny_model, config, training, validation)[1]
    model, half = retrained(tiny_model, config, training, validation, precision=torch.bfloat16)
    assert half[-1] == pytest.approx(whole[-1], abs=0.1)
    assert half[-1] > half[0]
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
