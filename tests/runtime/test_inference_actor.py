"""The inference actor as a plain object whose camera is fed by hand."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from bars import FPS, NAMES, SIDE, WINDOW_US, knowing, standing, turned_around
from fake_ipc import FakeGpu

import ekya.runtime.inference_actor
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.ids import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.core.speed import LINEAR
from ekya.gpu.bucket import TokenBucket
from ekya.gpu.sm_driver import SmDriverError
from ekya.labeling.proposer import GivenBoxes
from ekya.learning.checkpoints import to_bytes
from ekya.learning.flat import DamagedWeightsError
from ekya.runfolder import RunFolder
from ekya.runtime.inference_actor import InferenceActor
from ekya.runtime.lending import WeightLender
from ekya.streams.crops import crop_objects
from ekya.streams.process import Arrived
from ekya.workers.collector import WindowCollector
from ekya.workers.preparation import PreparationSettings

CAM, JOB = StreamId("cam"), JobId(7)
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)


class HandFed:
    """A feed that gives what it is handed and never ends."""

    ended, lost, died, damaged = False, None, None, 0

    def __init__(self, *_):
        self.coming = []
        self.polls = 0

    def wait_open(self):
        return FPS

    def begin(self, *_):
        pass

    def poll(self, timeout_s):
        time.sleep(min(timeout_s, 0.001))
        arrived, self.coming = self.coming, []
        self.polls += 1
        return arrived

    def close(self):
        pass


good = pytest.fixture(knowing, scope="module")


@pytest.fixture
def actor(monkeypatch, tmp_path, good):
    here = ekya.runtime.inference_actor
    setup = SimpleNamespace(
        settings=SETTINGS,
        window_us=WINDOW_US,
        collector=lambda: WindowCollector(SETTINGS.seed, FPS, WINDOW_US, SIDE),
    )
    for name, stands_in in {
        "stand_back": lambda: None,
        "fleet_classes": lambda _: NAMES,
        "Feed": HandFed,
        "stream_setup": lambda *_: setup,
        "proposer_for": lambda *_: GivenBoxes(),
        "crop_side": lambda _: SIDE,
    }.items():
        monkeypatch.setattr(here, name, stands_in)
    handle = TokenBucket(0)
    source = SimpleNamespace(live=False)
    stream = SimpleNamespace(id=CAM, played=None, source=source, play=SimpleNamespace(outages_us=()))
    common = SimpleNamespace(
        fleet=SimpleNamespace(streams=[stream]),
        seed=0,
        device="cpu",
        folder=RunFolder.create(tmp_path, "run"),
        shares=SimpleNamespace(attach=lambda _: handle),
        inference_speed=LINEAR,
    )
    made = InferenceActor(
        SimpleNamespace(common=common, place=0, weights=to_bytes(good), version=BASE_VERSION, gpu=0)
    )
    made.begin(time.monotonic_ns())
    yield made
    made.end(0)


def told(actor, count):
    events = []
    while len(events) < count:
        events.extend(actor.poll(5.0))
    return events


def part_right(actor):
    (frame, truth), *_ = standing(1)
    classes, _ = actor._worker.classifier.predict(crop_objects(frame.image, truth.boxes, SIDE), SIDE)
    return float(np.mean(classes == truth.classes))


def test_weights_that_served_before_serve_again_under_a_new_number(actor, good):
    assert part_right(actor) > 0.9
    actor.swap(to_bytes(turned_around(good)), 0.9, ModelVersion(1), JOB)
    (swapped,) = told(actor, 1)
    assert isinstance(swapped, ev.ModelSwapped)
    assert (swapped.stream, swapped.version, swapped.job, swapped.validation_accuracy) == (CAM, 1, JOB, 0.9)
    assert part_right(actor) < 0.5
    actor.roll_back(to_bytes(good), ModelVersion(2), BASE_VERSION)
    (back,) = told(actor, 1)
    assert isinstance(back, ev.RolledBack)
    assert (back.stream, back.version, back.of) == (CAM, 2, 0)
    assert 0 <= back.stall_us < 100_000
    assert part_right(actor) > 0.9


def test_weights_that_come_late_do_not_overtake_newer_ones(actor, good):
    actor.roll_back(to_bytes(good), ModelVersion(3), BASE_VERSION)
    actor.swap(to_bytes(turned_around(good)), 0.9, ModelVersion(2), JOB)
    (only,) = told(actor, 1)
    assert only.version == 3
    assert actor.poll(0.05) == []
    assert part_right(actor) > 0.9


@pytest.fixture
def gpu(monkeypatch):
    made = FakeGpu()
    monkeypatch.setattr(ekya.runtime.inference_actor, "open_ipc", made.process().ipc)
    return made


def test_weights_that_are_lent_serve_and_are_not_made_ready_again_when_their_bytes_come(actor, good, gpu):
    lender = WeightLender(gpu.process().ipc(), "cpu")
    lent = lender.lend(ModelVersion(1), turned_around(good), 0.9)
    actor.take(lent, 0.9, ModelVersion(1), JOB)
    lender.end(ModelVersion(1))
    (swapped,) = told(actor, 1)
    assert (swapped.stream, swapped.version, swapped.job, swapped.validation_accuracy) == (CAM, 1, JOB, 0.9)
    assert part_right(actor) < 0.5
    classifier = actor._worker.classifier
    actor.swap(to_bytes(good), 0.9, ModelVersion(1), JOB)
    assert actor.poll(0.05) == []
    assert actor._worker.classifier is classifier


def test_where_a_loan_fails_the_bytes_serve(actor, good, gpu):
    trainer = gpu.process()
    lent = WeightLender(trainer.ipc(), "cpu").lend(ModelVersion(1), turned_around(good), 0.9)
    gpu.damage()
    with pytest.raises(DamagedWeightsError):
        actor.take(lent, 0.9, ModelVersion(1), JOB)
    trainer.die()
    with pytest.raises(SmDriverError):
        actor.try_loan(lent)
    assert actor.poll(0.05) == []
    assert part_right(actor) > 0.9
    actor.swap(to_bytes(turned_around(good)), 0.9, ModelVersion(1), JOB)
    assert [event.version for event in told(actor, 1)] == [1]
    assert part_right(actor) < 0.5


def wait_for(condition):
    deadline_s = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.002)


def test_a_frame_that_waits_for_its_turn_has_it_before_the_share_is_taken_away(actor):
    """Otherwise the loop would wait for a share, and nobody would hear that the camera is back."""
    every = InferenceConfig(1, SIDE)
    actor.configure(every, 1000, 1)
    actor._handle.charge(400_000_000)  # more than has been earned: the next batch waits
    (frame, truth), *_ = standing(1)
    actor._source.coming = [Arrived(0, 0, time.monotonic_ns(), frame, truth)]
    wait_for(lambda: actor._control.looking)
    assert actor.configure(every, 0, 3).share_milli == 0
    assert not actor._control.looking
    polls = actor._source.polls
    wait_for(lambda: actor._source.polls > polls + 3)
    actor._source.coming = [Arrived(1, 100_000, time.monotonic_ns(), frame, truth)]
    wait_for(lambda: actor._arrived == 2)
    assert actor._last_analysed == 0, "without a share no frame is looked at"
