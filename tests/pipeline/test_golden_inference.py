"""Tests of the golden detector that analyses frames in inference."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

import ekya.pipeline.golden_inference
from ekya.core.host import TYPICAL_FRAME
from ekya.models.golden.detections import ON_CPU, GoldenObjects
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.golden_inference import GoldenInference

FLEET = SimpleNamespace(golden="golden", edge=SimpleNamespace(task="detect"))
CLASSES = ("person", "car")
PICTURE = np.zeros((48, 64, 3), np.uint8)


class World:
    """Golden detector and share, with a log of what happens in order."""

    runs_on = ON_CPU

    def __init__(self):
        self.log = []

    def open_golden(self, *given):
        self.log.append(("open", *given))
        return self

    def find_objects(self, image):
        self.log.append(("find", image.shape))
        return GoldenObjects(
            np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros((0, 4), np.float32)
        )

    def operations(self, questions):
        return sum(question.picture.size for question in questions)

    @contextmanager
    def scope(self):
        self.log.append("begin")
        yield
        self.log.append("end")


OPEN = ("open", "golden", CLASSES, "detect", "cpu")


@pytest.fixture
def world(monkeypatch):
    made, module = World(), ekya.pipeline.golden_inference
    monkeypatch.setattr(module, "open_golden", made.open_golden)
    monkeypatch.setattr(module, "fleet_classes", lambda _: CLASSES)
    return made


def test_find_opens_the_detector_once_before_its_scope(world):
    golden = GoldenInference(FLEET, DeviceScopes(scope=world.scope))
    assert world.log == []
    for _ in range(2):
        assert len(golden.find_objects(PICTURE).boxes) == 0
    turn = ["begin", ("find", PICTURE.shape), "end"]
    assert world.log == [OPEN, *turn, *turn]


def test_warm_up_runs_once_and_waits_for_no_share(world):
    golden = GoldenInference(FLEET, DeviceScopes(scope=world.scope))
    golden.warm_up()
    golden.warm_up()
    assert world.log == [OPEN, ("find", TYPICAL_FRAME)]


def test_operations_are_those_of_a_typical_frame(world):
    golden = GoldenInference(FLEET)
    assert golden.operations() == np.prod(TYPICAL_FRAME)
    assert world.log == [OPEN]


def test_find_after_an_error_answers_the_next_frame(world, monkeypatch):
    golden = GoldenInference(FLEET)
    with monkeypatch.context() as patch:
        patch.setattr(world, "find_objects", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            golden.find_objects(PICTURE)
    assert len(golden.find_objects(PICTURE).boxes) == 0
