"""Crops on disk, what an epoch draws, and a training that goes on from its checkpoint."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.spec import CLASSIFIERS, GoldenSpec, imported
from ekya.models.supervised.crop_store import (
    MOST_ALIKE,
    MOST_BYTES,
    CropStore,
    LabelledPicture,
    cut_stream,
    most_alike,
    open_crops,
)
from ekya.models.supervised.recipe import Recipe, choose_recipe, draw_balanced
from ekya.models.supervised.training import Training, TrainingState, balanced_accuracy, count_confusions

CLASSES = ("car", "bus")
NORTH, SOUTH = StreamId("north"), StreamId("south")
GREYS = (60, 200)


def pictures(count, tracks=5, classes=(0, 0, 1)):
    """Yields pictures of three objects, whose grey tells the class and whose blue the picture."""
    rng = np.random.default_rng(3)
    boxes = np.array([[4 + 30 * place, 4, 28 + 30 * place, 28] for place in range(3)], np.float32)
    for number in range(count):
        image = rng.integers(0, 20, (40, 100, 3)).astype(np.uint8)
        for (x0, y0, x1, y1), kind in zip(boxes.astype(int), classes, strict=True):
            image[y0 - 2 : y1 + 2, x0 - 2 : x1 + 2, 1:] += np.uint8(GREYS[kind])
        image[..., 0] = number
        track = 3 * (number % tracks)
        yield LabelledPicture(image, 1000 * number, boxes, np.array(classes), track + np.arange(3))


def store_of(folder, count=40, side=32, **streams):
    folder.mkdir(exist_ok=True)
    for stream in (NORTH, SOUTH):
        cut_stream(folder, stream, side, 10_000, pictures(count, **streams), 0)
    return CropStore({stream: open_crops(folder, stream, side) for stream in (NORTH, SOUTH)})


def test_crops_of_a_class_beyond_the_cap_are_drawn_from_the_whole_stream(tmp_path):
    cut_stream(tmp_path, NORTH, 8, 12, pictures(100), 1)
    held = open_crops(tmp_path, NORTH, 8)
    assert np.bincount(held.classes).tolist() == [12, 12]
    assert held.t_us.max() > 50_000 > held.t_us.min()
    # Each row has the pixels of its own picture: a crop is RGB, and blue is the picture's number.
    assert np.array_equal(held.crops[:, 4, 4, 2], held.t_us // 1000)
    assert ((held.crops[:, 4, 4, 0] > 130) == (held.classes == 1)).all()


def test_a_stream_that_is_cut_is_not_read_again(tmp_path):
    cut_stream(tmp_path, NORTH, 8, 12, pictures(5), 1)

    def never():
        raise AssertionError("it is read again")
        yield

    cut_stream(tmp_path, NORTH, 8, 12, never(), 1)
    assert len(open_crops(tmp_path, NORTH, 8)) == 5 + 10


def test_a_stream_without_objects_has_no_crops(tmp_path):
    cut_stream(tmp_path, SOUTH, 8, 12, (), 1)
    cut_stream(tmp_path, NORTH, 8, 12, pictures(4), 1)
    store = CropStore({one: open_crops(tmp_path, one, 8) for one in (NORTH, SOUTH)})
    assert len(store) == 12
    assert store.read_crops(np.array([3, 0])).shape == (2, 8, 8, 3)


@pytest.mark.parametrize("side", [32, 224])
def test_all_crops_fit_on_the_disk_that_is_allowed(side):
    assert most_alike(1, 2, 32) == MOST_ALIKE
    most = most_alike(50, 10, side)
    assert most == MOST_ALIKE or most * 500 * 3 * side**2 <= MOST_BYTES
    assert most_alike(10**6, 100, 640) == 1


@pytest.mark.parametrize("held_out", [(SOUTH,), ()])
def test_no_object_is_in_two_parts_and_held_out_streams_never_train(tmp_path, held_out):
    store = store_of(tmp_path)
    split = store.split(held_out)
    parts = (split.training, split.stopping, split.held_out)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(store)))
    seen = [set(store.objects[part].tolist()) for part in parts]
    assert all(len(part) for part in parts)
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    learnt = {store.streams[part] for part in store.parts[np.concatenate(parts[:2])]}
    assert learnt == ({NORTH} if held_out else {NORTH, SOUTH})
    drawn = draw_balanced(store.classes, split.training, 500, 0, 2)
    assert not set(store.objects[drawn].tolist()) & (seen[1] | seen[2])


def test_classes_are_drawn_equally_often_however_rare():
    classes = np.array([0] * 980 + [1] * 15 + [2] * 5)
    rows = np.arange(len(classes))
    drawn = draw_balanced(classes, rows, 6000, 0, 0)
    counts = np.bincount(classes[drawn])
    assert counts.min() > 1800
    assert counts.max() < 2200
    # Within a class, every crop as often as another.
    assert np.bincount(drawn)[980:995].min() > 60
    assert np.array_equal(drawn, draw_balanced(classes, rows, 6000, 0, 0))
    assert not np.array_equal(drawn, draw_balanced(classes, rows, 6000, 0, 1))


def test_recipe_learns_few_crops_longer_and_its_rate_warms_up_and_falls():
    few, many = choose_recipe(500, 32, True), choose_recipe(15_000, 32, True)
    assert few.epochs > many.epochs >= 6
    # Without a choice of epochs about as many crops are shown, however many there are.
    shown = [one.epochs * one.steps * one.batch for one in (choose_recipe(6_000, 32, True), many)]
    assert shown[0] == pytest.approx(shown[1], rel=0.1)
    assert choose_recipe(15_000, 224, False).batch < many.batch
    assert choose_recipe(15_000, 32, True, 2).epochs == 2
    rates = [many.rate_at(step) for step in range(many.epochs * many.steps)]
    highest = int(np.argmax(rates))
    assert 0 < highest < len(rates) / 5
    assert max(rates) == pytest.approx(many.rate, rel=0.01)
    assert rates[-1] < rates[0] < many.rate / 10
    assert all(later <= before for before, later in zip(rates[highest:], rates[highest + 1 :], strict=False))


def test_confusions_count_and_weigh_classes_alike():
    table = count_confusions(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 3)
    assert table.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert balanced_accuracy(table) == pytest.approx((2 / 3 + 1) / 2)


class StoppedError(Exception):
    """Ends a training from its callback."""


class Watched:
    """Records progress, and ends the training after a number of steps.

    Attributes:
        began_at: epoch and step at which it went on.
        steps: that were taken.
    """

    def __init__(self, most=math.inf):
        self.most, self.steps, self.began_at = most, 0, None

    def show_start(self, state, recipe):
        self.began_at = (state.epoch, state.step)

    def show_step(self, state):
        self.steps += 1
        if self.steps >= self.most:
            raise StoppedError

    def show_epoch(self, state):
        pass


@pytest.fixture
def keep_always(monkeypatch):
    monkeypatch.setattr("ekya.system.keeper._KEEP_EVERY_S", 0.0)
    monkeypatch.setattr("ekya.system.keeper._MOST_PART_WRITING", math.inf)


def train(folder: Path, store, model, recipe, progress) -> tuple[bytes, TrainingState, Training]:
    folder.mkdir(exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = imported(CLASSIFIERS[model].trainable)(model, len(CLASSES), None)
    training = Training(network, store, store.split((SOUTH,)), recipe, folder, "cpu", 5, progress)
    state = training.run()
    return network.to_file(CLASSES, {"accuracy": "1.0"}), state, training


@pytest.mark.parametrize("stops", [(3,), (7, 12)])
@pytest.mark.usefixtures("keep_always")
def test_a_training_that_is_resumed_is_the_same_to_the_bit(tmp_path, stops):
    store, recipe = store_of(tmp_path / "crops", 12, 16), Recipe(4, 4, 5, 1e-3, 4)
    whole, state, _ = train(tmp_path / "whole", store, "resnext29", recipe, Watched())
    taken = 0
    for most in stops:
        watched = Watched(most - taken)
        with pytest.raises(StoppedError):
            train(tmp_path / "parts", store, "resnext29", recipe, watched)
        assert watched.began_at == divmod(taken, recipe.steps)
        taken = most
    watched = Watched()
    again, resumed, _ = train(tmp_path / "parts", store, "resnext29", recipe, watched)
    assert watched.began_at == divmod(taken, recipe.steps)
    assert watched.steps == recipe.epochs * recipe.steps - taken
    assert again == whole
    assert resumed == state


def test_a_training_that_gets_no_better_ends_early_with_its_best_weights(tmp_path):
    store, recipe = store_of(tmp_path / "crops", 12, 16), Recipe(60, 8, 5, 2e-3, 15)
    _, state, training = train(tmp_path / "whole", store, "resnext29", recipe, Watched())
    assert state.epoch == len(state.losses) < 60
    assert state.epoch - 1 - state.best_epoch == 15
    assert state.accuracies[state.best_epoch] == max(state.accuracies)
    # Two greys are easily told apart, in a stream that never trained, too.
    for rows in (training.split.stopping, training.split.held_out):
        predicted, _ = training.predict(rows)
        assert balanced_accuracy(count_confusions(store.classes[rows], predicted)) == 1.0


def test_a_damaged_checkpoint_is_named(tmp_path):
    store = store_of(tmp_path / "crops", 8)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: the checkpoint is damaged; remove it"):
        train(tmp_path, store, "resnext29", Recipe(1, 4, 1, 1e-3, 1), Watched())


def test_weights_to_begin_with_fit_or_are_refused(tmp_path):
    make = imported(CLASSIFIERS["resnext29"].trainable)
    first = make("resnext29", 3, None)
    path = tmp_path / "first.safetensors"
    path.write_bytes(first.to_file(("a", "b", "c"), {}))
    for classes in (3, 5):
        begun = make("resnext29", classes, path)
        assert not begun.fresh
        given, taken = first.module.state_dict(), begun.module.state_dict()
        same = [name for name in given if torch.equal(given[name], taken[name])]
        assert ("head.weight" in same) == (classes == 3)
        assert len(same) >= len(given) - 2
    save_file({"features.0.weight": torch.zeros(3, 3)}, path)
    with pytest.raises(UserError, match=r"first\.safetensors: does not fit resnext29, named by --weights"):
        make("resnext29", 3, path)


@pytest.mark.long
@pytest.mark.usefixtures("keep_always")
def test_resnext101_trains_resumes_and_loads_with_its_own_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where no ImageNet weights are
    store, recipe = store_of(tmp_path / "crops", 6, side=224, tracks=3), Recipe(1, 2, 2, 1e-4, 1)
    whole, *_ = train(tmp_path / "whole", store, "resnext101_32x8d", recipe, Watched())
    with pytest.raises(StoppedError):
        train(tmp_path / "parts", store, "resnext101_32x8d", recipe, Watched(1))
    watched = Watched()
    again, *_ = train(tmp_path / "parts", store, "resnext101_32x8d", recipe, watched)
    assert watched.began_at == (0, 1)
    assert again == whole
    path = tmp_path / "ours.safetensors"
    path.write_bytes(again)
    spec = GoldenSpec(model="resnext101_32x8d", weights=path)
    picture = next(iter(pictures(1)))
    for classes in (CLASSES, ("bus",)):
        (labels,) = open_golden(spec, classes).label_boxes([Question(picture.boxes, picture.image)])
        assert labels.shape == (3,)
        assert set(labels.tolist()) <= set(range(len(classes)))
    with pytest.raises(UserError, match="resnext101_32x8d knows no 'person'"):
        open_golden(spec, ("person",))
