"""Exemplars: which are kept, and that they survive their process."""

from dataclasses import replace

import numpy as np
import pytest

from ekya.models.training.exemplar_file import load_exemplars, save_exemplars
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames
from ekya.models.training.labelled import LabelledCrops


def test_exemplars_of_a_class_are_spread_over_all_its_time(make_bars) -> None:
    memory = ExemplarMemory(budget=6)
    for window in range(4):
        crops = make_bars(40, window, first_track=100 * window)
        memory = memory.update_exemplars(replace(crops, t_us=np.arange(40) + 1000 * window))
    kept = memory.exemplars()
    assert len(kept) == 6
    for index in np.unique(kept.classes):
        t_us = kept.t_us[kept.classes == index]
        assert list(t_us) == sorted(t_us)
        assert (t_us[0] < 1000, t_us[-1] >= 3000) == (True, True)


def test_exemplar_memory_is_bounded_and_deterministic(make_bars) -> None:
    memory = ExemplarMemory(budget=10)
    assert memory.exemplars() is None
    for window in range(3):
        crops = make_bars(60, window, classes=(0, 1) if window < 2 else (2,), first_track=100 * window)
        memory, again = (
            memory.update_exemplars(crops),
            memory.update_exemplars(crops),
        )
        kept, kept_again = memory.exemplars(), again.exemplars()
        assert kept is not None
        assert kept_again is not None
        assert np.array_equal(kept.crops, kept_again.crops)
        quota = 5 if window < 2 else 3
        assert np.bincount(kept.classes, minlength=3).tolist() == ([quota, quota, 0 if window < 2 else quota])


def test_exemplar_memory_without_new_crops_is_unchanged(make_bars) -> None:
    empty = make_bars(2, 0).select_rows(np.zeros(0, np.int64))
    memory = ExemplarMemory(4)
    assert memory.update_exemplars(empty).exemplars() is None
    full = memory.update_exemplars(make_bars(20, 0))
    assert len(full.update_exemplars(empty).exemplars()) == len(full.exemplars())


def test_exemplar_memory_of_many_classes_keeps_to_the_budget(make_bars) -> None:
    assert len(ExemplarMemory(2).update_exemplars(make_bars(30, 0)).exemplars()) == 2


EMPTY = ExemplarMemory(9)


def crops():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (5, 8, 8, 3), np.uint8)
    return LabelledCrops(images, np.arange(5), np.arange(5) * 7, np.arange(5) * 1000)


def frames():
    rng = np.random.default_rng(2)
    boxes = rng.random((3, 4), np.float32)
    seen = FrameObjects(boxes, np.array([0, 1, 1]), rng.random((2, 4), np.float32))
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    return LabelledFrames(images, (NOTHING, seen, NOTHING), ("car", "bus"), np.arange(3), np.arange(3) * 5)


def columns(kept):
    """Returns all arrays of examples."""
    if isinstance(kept, LabelledCrops):
        return [kept.crops, kept.classes, kept.tracks, kept.t_us]
    objects = [part for of in kept.objects for part in (of.boxes, of.classes, of.doubtful)]
    return [kept.images, *objects, kept.tracks, kept.t_us]


@pytest.mark.parametrize("make", [crops, frames])
def test_exemplars_come_back_as_they_were(tmp_path, make):
    path, kept = tmp_path / "cam.safetensors", make()
    save_exemplars(path, ExemplarMemory(9, kept))
    again = load_exemplars(path, EMPTY).kept
    assert type(again) is type(kept)
    assert getattr(again, "names", None) == getattr(kept, "names", None)
    for one, other in zip(columns(again), columns(kept), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_memory_without_exemplars_writes_no_file(tmp_path):
    save_exemplars(tmp_path / "cam.safetensors", EMPTY)
    assert list(tmp_path.iterdir()) == []
    assert load_exemplars(tmp_path / "cam.safetensors", EMPTY) is EMPTY


@pytest.mark.parametrize("content", [b"", b"damaged" * 40])
def test_damaged_file_is_reported_and_left_out(tmp_path, caplog, content):
    path = tmp_path / "cam.safetensors"
    path.write_bytes(content)
    assert load_exemplars(path, EMPTY) is EMPTY
    assert "cannot be read" in caplog.text


def test_file_without_a_column_is_left_out(tmp_path, caplog):
    path = tmp_path / "cam.safetensors"
    save_exemplars(path, ExemplarMemory(9, crops()))
    path.write_bytes(path.read_bytes().replace(b"classes", b"klasses", 1))
    assert load_exemplars(path, EMPTY) is EMPTY
