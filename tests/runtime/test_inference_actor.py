"""Tests of the inference actor as a plain object whose frames are fed by hand."""

import gc
import threading
import time
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bars import FPS, NAMES, SIDE, WINDOW_US, knowing, standing, turned_around
from fake_ipc import FakeGpu

import ekya.runtime.inference_actor
import ekya.runtime.stream_inference
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.gpu.backends.token_bucket import TokenBucket
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.flat import DamagedWeightsError
from ekya.models.edge.forward import PLAIN
from ekya.models.golden.proposer import GivenBoxes
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.settings import PreparationSettings
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions
from ekya.runtime.cuda_ipc_transfer import CudaIpcSender
from ekya.runtime.inference_actor import InferenceActor
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.process import Arrived

CAM, OTHER, JOB = StreamId("cam"), StreamId("other"), JobId(7)
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)


class Aborted:
    """Feed whose decoder died at every start."""

    ended, lost, died, damaged = True, None, "killed by signal SIGABRT", 0

    def __init__(self, *_):
        pass

    def wait_open(self):
        return FPS

    def begin(self, *_):
        pass

    def poll(self, _timeout_s):
        return []

    def close(self):
        pass


class HandFed:
    """Feed that returns the frames it is given and never ends."""

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


def orders_of(common, stream):
    place = [one.id for one in common.fleet.streams].index(stream)
    return SimpleNamespace(common=common, place=place, stream=stream, version=BASE_VERSION, gpu=0)


@pytest.fixture
def common(monkeypatch, tmp_path):
    """Orders that the actor's two streams have in common."""
    setup = SimpleNamespace(
        settings=SETTINGS,
        window_us=WINDOW_US,
        collector=lambda: WindowCollector(SETTINGS.seed, FPS, WINDOW_US, SIDE),
    )
    actor, stream = ekya.runtime.inference_actor, ekya.runtime.stream_inference
    for room, name, stands_in in (
        (actor, "lower_priority", lambda: None),
        (actor, "Feed", HandFed),
        (actor, "fleet_classes", lambda _: NAMES),
        (actor, "crop_side", lambda _: SIDE),
        (stream, "fleet_classes", lambda _: NAMES),
        (stream, "stream_setup", lambda *_: setup),
        (stream, "proposer_for", lambda *_: GivenBoxes()),
        (stream, "crop_side", lambda _: SIDE),
    ):
        monkeypatch.setattr(room, name, stands_in)
    handle = TokenBucket(0)
    source, play = SimpleNamespace(live=False), SimpleNamespace(outages_us=())
    return SimpleNamespace(
        fleet=SimpleNamespace(
            streams=[SimpleNamespace(id=one, played=None, source=source, play=play) for one in (CAM, OTHER)],
            inference=SimpleNamespace(resolutions=(SIDE,)),
        ),
        seed=0,
        device="cpu",
        folder=RunFolder.create(tmp_path, "run"),
        shares=SimpleNamespace(attach=lambda _: handle),
        way=PLAIN,
        inference_speed=LINEAR,
    )


@pytest.fixture(params=[(CAM,), (OTHER, CAM)], ids=["alone", "beside another"])
def actor(request, common, good):
    streams = tuple(orders_of(common, stream) for stream in request.param)
    made = InferenceActor(SimpleNamespace(common=common, name="inference", gpu=0, streams=streams))
    made.load((0,) * len(streams), to_bytes(good))
    made.begin(time.monotonic_ns())
    yield made
    made.end(0)


def told(actor, count):
    events = []
    while len(events) < count:
        events.extend(actor.poll(5.0))
    return events


def part_right(actor, stream=CAM):
    (frame, truth), *_ = standing(1)
    crops = crop_objects(frame.image, truth.boxes, SIDE)
    classes, _ = actor._streams[stream]._worker.classifier.predict(crops, SIDE)
    return float(np.mean(classes == truth.classes))


def wait_for(condition):
    deadline_s = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.002)


def test_weights_that_served_before_serve_again_under_a_new_number(actor, good):
    assert part_right(actor) > 0.9
    actor.swap(CAM, to_bytes(turned_around(good)), 0.9, ModelVersion(1), JOB)
    (swapped,) = told(actor, 1)
    assert isinstance(swapped, ev.ModelSwapped)
    assert (swapped.stream, swapped.version, swapped.job, swapped.validation_accuracy) == (CAM, 1, JOB, 0.9)
    assert part_right(actor) < 0.5
    actor.roll_back(CAM, to_bytes(good), ModelVersion(2), BASE_VERSION)
    (back,) = told(actor, 1)
    assert isinstance(back, ev.RolledBack)
    assert (back.stream, back.version, back.of) == (CAM, 2, 0)
    assert 0 <= back.stall_us < 100_000
    assert part_right(actor) > 0.9


def test_weights_that_come_late_do_not_overtake_newer_ones(actor, good):
    actor.roll_back(CAM, to_bytes(good), ModelVersion(3), BASE_VERSION)
    actor.swap(CAM, to_bytes(turned_around(good)), 0.9, ModelVersion(2), JOB)
    (only,) = told(actor, 1)
    assert only.version == 3
    assert actor.poll(0.05) == []
    assert part_right(actor) > 0.9


@pytest.fixture
def gpu(monkeypatch):
    made = FakeGpu()
    monkeypatch.setattr(ekya.runtime.stream_inference, "open_ipc", made.process().ipc)
    return made


def test_weights_that_are_lent_serve_and_are_not_made_ready_again_when_their_bytes_come(actor, good, gpu):
    lender = CudaIpcSender(gpu.process().ipc(), "cpu")
    lent = lender.lend(ModelVersion(1), turned_around(good), 0.9)
    actor.take(CAM, lent, 0.9, ModelVersion(1), JOB)
    lender.end(ModelVersion(1))
    (swapped,) = told(actor, 1)
    assert (swapped.stream, swapped.version, swapped.job, swapped.validation_accuracy) == (CAM, 1, JOB, 0.9)
    assert part_right(actor) < 0.5
    classifier = actor._streams[CAM]._worker.classifier
    actor.swap(CAM, to_bytes(good), 0.9, ModelVersion(1), JOB)
    assert actor.poll(0.05) == []
    assert actor._streams[CAM]._worker.classifier is classifier


def test_where_a_loan_fails_the_bytes_serve(actor, good, gpu):
    trainer = gpu.process()
    lent = CudaIpcSender(trainer.ipc(), "cpu").lend(ModelVersion(1), turned_around(good), 0.9)
    gpu.damage()
    with pytest.raises(DamagedWeightsError):
        actor.take(CAM, lent, 0.9, ModelVersion(1), JOB)
    trainer.die()
    with pytest.raises(SmDriverError):
        actor.try_loan(CAM, lent)
    assert actor.poll(0.05) == []
    assert part_right(actor) > 0.9
    actor.swap(CAM, to_bytes(turned_around(good)), 0.9, ModelVersion(1), JOB)
    assert [event.version for event in told(actor, 1)] == [1]
    assert part_right(actor) < 0.5


def test_a_frame_that_waits_for_its_turn_has_it_before_the_share_is_taken_away(actor):
    """Otherwise the loop would wait for the share, and the camera's return would never be reported."""
    every, cam = InferenceConfig(1, SIDE), actor._streams[CAM]
    actor.configure(CAM, every, 1000, 1)
    cam._process.handle.charge(400_000_000)  # more than is earned: the next batch waits
    show(cam, 0)
    wait_for(lambda: cam._control.looking)
    assert actor.configure(CAM, every, 0, 3).share_milli == 0
    assert not cam._control.looking
    polls = cam._source.polls
    wait_for(lambda: cam._source.polls > polls + 3)
    show(cam, 1)
    wait_for(lambda: cam._arrived == 2)
    assert cam._last_analysed == 0, "without a share no frame is looked at"


def show(stream, index):
    (frame, truth), *_ = standing(1)
    stream._source.coming = [Arrived(index, 100_000 * index, time.monotonic_ns(), frame, truth)]


@pytest.fixture
def two(common, good):
    """Actor of two streams with different models: that of the second one gives other answers."""
    streams = tuple(orders_of(common, stream) for stream in (CAM, OTHER))
    made = InferenceActor(SimpleNamespace(common=common, name="inference", gpu=0, streams=streams))
    made.load((1, 0), to_bytes(turned_around(good)), to_bytes(good))
    made.begin(time.monotonic_ns())
    yield made
    made.end(0)


def test_streams_that_share_a_process_are_answered_in_one_call_each_by_its_own_model(two, common):
    every, process = InferenceConfig(1, SIDE), two._process
    for serial, stream in enumerate((CAM, OTHER), 1):
        two.configure(stream, every, 500, serial)
    calls, turn = [], threading.Event()
    predict = process.models.predict

    @contextmanager
    def scope():
        assert turn.wait(5)
        yield

    process.calls._scope = scope
    process.calls._answer = lambda asked: calls.append(len(asked)) or predict(asked)
    for stream in (CAM, OTHER):
        show(two._streams[stream], 0)
    wait_for(lambda: len(process.calls._waiting) == 2)
    turn.set()
    wait_for(lambda: all(two._streams[stream]._last_analysed == 0 for stream in (CAM, OTHER)))
    two.end(10**9)
    assert calls == [2]
    (_, truth), *_ = standing(1)
    right = {
        stream: np.mean(read_predictions(common.folder.predictions(stream)).classes == truth.classes)
        for stream in (CAM, OTHER)
    }
    assert right[CAM] > 0.9
    assert right[OTHER] < 0.5


def test_the_process_holds_the_sum_of_what_its_streams_have(two):
    every, handle = InferenceConfig(1, SIDE), two._process.handle
    assert two.configure(CAM, every, 300, 1).share_milli == 300
    assert two.configure(OTHER, every, 500, 2).share_milli == 500
    assert handle._share_milli == 800
    assert two.configure(CAM, every, 100, 4).share_milli == 100
    assert two.configure(CAM, every, 900, 3) is None, "it was overtaken"
    assert handle._share_milli == 600
    two.leave(OTHER)
    assert handle._share_milli == 100
    assert two.configure(OTHER, every, 500, 5) is None, "it is not there any more"
    assert handle._share_milli == 100


def test_what_was_used_is_charged_to_whose_crops_they_were(two):
    every, bucket = InferenceConfig(1, SIDE), two._process.handle
    for serial, stream in enumerate((CAM, OTHER), 1):
        two.configure(stream, every, 500, serial)
    show(two._streams[CAM], 0)
    wait_for(lambda: two._streams[CAM]._last_analysed == 0)
    bucket.charge(5_000_000)
    wait_for(lambda: two._process.use._looked_at)
    use = two._process.use
    assert use.measured(two._streams[CAM]._part).used_us >= 5_000
    assert use.measured(two._streams[OTHER]._part).used_us == 0


def test_a_stream_that_fails_says_so_and_the_other_goes_on(two, common, good):
    every, broken = InferenceConfig(1, SIDE), two._streams[CAM]
    for serial, stream in enumerate((CAM, OTHER), 1):
        two.configure(stream, every, 500, serial)

    def explode(*_):
        raise ValueError("a frame that nobody expected")

    broken._worker.cut = explode
    show(broken, 0)
    (died,) = told(two, 1)
    assert isinstance(died, ev.WorkerDied)
    assert (died.stream, died.role, died.reason) == (
        CAM,
        ev.Role.INFERENCE,
        "ValueError: a frame that nobody expected",
    )
    assert two._process.handle._share_milli == 500, "what it had is let go of before it is told"
    show(two._streams[OTHER], 0)
    wait_for(lambda: two._streams[OTHER]._last_analysed == 0)

    two.join(orders_of(common, CAM), to_bytes(good), time.monotonic_ns() - 10**9)
    assert two._streams[CAM] is not broken
    assert two.configure(CAM, every, 400, 7).share_milli == 400
    assert two._process.handle._share_milli == 900
    show(two._streams[CAM], 3)
    wait_for(lambda: two._streams[CAM]._last_analysed == 3)


def test_what_frames_really_took_is_told_of_each_stream_by_itself(two, monkeypatch):
    monkeypatch.setattr(ekya.runtime.stream_inference, "MEASURE_EVERY_S", 0.2)
    every = InferenceConfig(1, SIDE)
    two.configure(CAM, every, 500, 1)
    two.configure(OTHER, every, 500, 2)
    for at in range(3):
        show(two._streams[CAM], at)
        wait_for(lambda at=at: two._streams[CAM]._last_analysed == at)
    measured = []
    while not measured:
        measured = [event for event in two.poll(5.0) if isinstance(event, ev.NeedMeasured)]
    ((stream, config, share_milli),) = [(one.stream, one.config, one.share_milli) for one in measured]
    assert (stream, config) == (CAM, every)
    assert share_milli > 0


def test_a_stream_that_has_lost_the_gpu_takes_its_process_with_it(two, monkeypatch):
    """Restarted beside the other streams it would fail again, and so would they."""
    error, ended = torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), []

    def explode(*_):
        raise error

    monkeypatch.setattr(ekya.runtime.stream_inference, "end_process_if_gpu_is_lost", ended.append)
    two.configure(CAM, InferenceConfig(1, SIDE), 500, 1)
    two._streams[CAM]._worker.cut = explode
    show(two._streams[CAM], 0)
    told(two, 1)
    assert ended == [error]


def test_of_a_stream_that_has_left_nothing_is_kept(two):
    two.configure(OTHER, InferenceConfig(1, SIDE), 500, 1)
    weights = weakref.ref(two._streams[OTHER]._worker.classifier.predictor)
    two.leave(OTHER)
    gc.collect()
    assert weights() is None


def test_a_process_that_is_made_again_has_no_streams_until_they_join(common, good):
    made = InferenceActor(SimpleNamespace(common=common, name="inference", gpu=0, streams=()))
    assert made.load(()) == {}
    assert made.configure(CAM, InferenceConfig(1, SIDE), 500, 1) is None
    made.swap(CAM, to_bytes(good), 0.9, ModelVersion(1), JOB)
    made.leave(CAM)
    made.join(orders_of(common, CAM), to_bytes(good), time.monotonic_ns())
    assert part_right(made) > 0.9
    assert [row.stream for row in made.end(0)] == [CAM]


def test_a_file_that_aborts_its_decoder_at_once_is_lost_with_the_reason_and_the_other_stream_goes_on(
    common, good, monkeypatch
):
    feeds = iter([Aborted, HandFed])
    monkeypatch.setattr(ekya.runtime.inference_actor, "Feed", lambda *_: next(feeds)())
    common.fleet.inference = SimpleNamespace(resolutions=(SIDE,))
    streams = tuple(orders_of(common, stream) for stream in (CAM, OTHER))
    actor = InferenceActor(SimpleNamespace(common=common, name="inference", gpu=0, streams=streams))
    assert {stream: known.died for stream, known in actor.load((0, 0), to_bytes(good)).items()} == {
        CAM: "killed by signal SIGABRT",
        OTHER: None,
    }
    actor.begin(time.monotonic_ns())
    lost, ended = told(actor, 2)
    assert (type(lost), lost.stream, lost.reason) == (ev.StreamLost, CAM, "killed by signal SIGABRT")
    assert (type(ended), ended.stream) == (ev.StreamEnded, CAM)
    (frame, truth), *_ = standing(1)
    actor._streams[OTHER]._source.coming = [Arrived(0, 0, 0, frame, truth)]
    wait_for(lambda: actor._streams[OTHER]._arrived == 1)
    rows = actor.end(0)
    assert [(row.stream, row.decoded, row.set_aside) for row in rows] == [
        (CAM, 0, "killed by signal SIGABRT"),
        (OTHER, 1, None),
    ]


def test_the_base_model_is_made_once_and_lies_in_the_folder_for_every_stream(common, good, monkeypatch):
    monkeypatch.setattr(ekya.runtime.inference_actor, "base_model", lambda *_: good)
    actor = InferenceActor(SimpleNamespace(common=common, name="inference", gpu=0, streams=()))
    weights, _ = actor.base_weights()
    actor.end(0)
    assert torch.equal(from_bytes(weights).head.weight, good.head.weight)
    for stream in (CAM, OTHER):
        assert load_model(common.folder.model(stream, BASE_VERSION)).classes == good.classes


def test_a_spare_process_has_no_share_before_a_stream_joins(common, good):
    attached = []
    handle = common.shares.attach(None)
    common.shares.attach = lambda job: attached.append(job) or handle
    spare = InferenceActor(SimpleNamespace(common=common, name="inference/spare", gpu=0, streams=()))
    spare.warm_up(to_bytes(good))
    assert (attached, spare.poll(0.0)) == ([], [])
    for stream in (CAM, OTHER):
        spare.join(orders_of(common, stream), to_bytes(good), time.monotonic_ns())
    assert len(attached) == 1
    assert part_right(spare) > 0.9
    assert {row.stream for row in spare.end(0)} == {CAM, OTHER}
