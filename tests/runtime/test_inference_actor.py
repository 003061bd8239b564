"""Tests of the inference actor as a plain object whose frames are fed by hand."""

import gc
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bars import FPS, NAMES, SIDE, WINDOW_US, knowing, standing, turned_around
from waiting import HANG_GUARD_S, call_at, wait_until, wait_until_blocked

import ekya.pipeline.golden_inference
import ekya.runtime.actors.inference_actor
import ekya.runtime.actors.stream_inference
from ekya.core import events as ev
from ekya.core.areas import Areas
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import StreamCosts
from ekya.core.speed import LINEAR
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.gpu.backends.token_bucket import TokenBucket
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.multi_model import MultiModelPredictor
from ekya.models.golden.detections import ON_CPU, GoldenObjects
from ekya.models.proposer import GivenBoxes
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.adaptation.drift import Drift
from ekya.results.storage.hour_tables import next_rows
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions
from ekya.runtime.actors.actor_kinds import ProcessConfig, StreamActorConfig
from ekya.runtime.actors.inference_actor import InferenceActor
from ekya.runtime.shares.job_share import SharedUse
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import Arrived

CAM, OTHER, JOB = StreamId("cam"), StreamId("other"), JobId(7)
EVERY = InferenceConfig(1, SIDE)
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)


class Aborted:
    """Feed whose decoder died at every start."""

    ended, lost, died, damaged = True, None, "killed by signal SIGABRT", 0

    def __init__(self, *_):
        pass

    def wait_open(self):
        return FPS

    def start_frames(self, *_):
        pass

    def poll_frames(self, _timeout_s):
        return []

    def close(self):
        pass

    def resume_source(self):
        pass


FEEDS = {}
"""The feed of each stream that was opened last."""


class HandFed:
    """Feed that returns the frames it is given and never ends."""

    ended, lost, died, damaged = False, None, None, 0

    def __init__(self, _played, _classes, stream, areas):
        self.coming = deque()
        self.polls = 0
        FEEDS[stream] = self

    def wait_open(self):
        return FPS

    def start_frames(self, *_):
        pass

    def poll_frames(self, timeout_s):
        time.sleep(min(timeout_s, 0.001))
        arrived = [self.coming.popleft() for _ in range(len(self.coming))]
        self.polls += 1
        return arrived

    def close(self):
        pass

    def resume_source(self):
        pass


good = pytest.fixture(knowing, scope="module")


def config_of(common, stream):
    place = [one.id for one in common.fleet.streams].index(stream)
    return StreamActorConfig(common, place, BASE_VERSION)


@pytest.fixture
def common(monkeypatch, tmp_path):
    """Settings that the actor's two streams have in common."""
    setup = SimpleNamespace(
        settings=SETTINGS,
        window_us=WINDOW_US,
        collector=lambda: WindowCollector(SETTINGS, WINDOW_US),
    )
    actor, stream = ekya.runtime.actors.inference_actor, ekya.runtime.actors.stream_inference
    for module, name, fake in (
        (actor, "lower_priority", lambda niceness: None),
        (actor, "Feed", HandFed),
        (actor, "fleet_classes", lambda _: NAMES),
        (actor, "crop_side", lambda _: SIDE),
        (stream, "stream_setup", lambda *_: setup),
        (stream, "proposer_for", lambda *_: GivenBoxes()),
        (stream, "drift_monitor", lambda _: None),
        (stream, "crop_side", lambda _: SIDE),
    ):
        monkeypatch.setattr(module, name, fake)
    bucket = TokenBucket(0)
    same = {"source": SimpleNamespace(live=False), "play": SimpleNamespace(outages_us=()), "areas": Areas()}
    return SimpleNamespace(
        fleet=SimpleNamespace(
            streams=[SimpleNamespace(id=one, played=None, **same) for one in (CAM, OTHER)],
            inference=SimpleNamespace(resolutions=(SIDE,), golden_every=()),
        ),
        seed=0,
        device="cpu",
        folder=RunFolder.create_numbered(tmp_path, "run"),
        shares=SimpleNamespace(attach_job=lambda _: bucket),
        way=PLAIN,
        inference_speed=LINEAR,
        keeps_hours=False,
        audit_frames=0,
        variables={},
        costs={CAM: None, OTHER: None},
        bucket=bucket,
    )


def actor_of(common, *streams):
    streams = tuple(config_of(common, stream) for stream in streams)
    return InferenceActor(ProcessConfig(common, "inference", 0, streams))


@pytest.fixture(params=[(CAM,), (OTHER, CAM)], ids=["alone", "beside another"])
def actor(request, common, good):
    made = actor_of(common, *request.param)
    made.load_streams((0,) * len(request.param), to_bytes(good))
    call_at(made.start_run)
    yield made
    made.end_run(0)


@pytest.fixture
def two(common, good):
    """Actor of two streams with different models: that of the second one gives other answers."""
    made = actor_of(common, CAM, OTHER)
    made.load_streams((1, 0), to_bytes(turned_around(good)), to_bytes(good))
    call_at(made.start_run)
    yield made
    made.end_run(0)


def events_of(actor, count):
    events = []
    while len(events) < count:
        events.extend(actor.poll(5.0))
    return events


def serving(actor, stream=CAM):
    return actor.shared.models.serving_weights(stream).model


def part_right(actor, stream=CAM):
    (frame, truth), *_ = standing(1)
    crops = crop_objects(frame.image, truth.boxes, SIDE)
    classes, _ = serving(actor, stream).predict(crops, SIDE)
    return float(np.mean(classes == truth.classes))


def show(stream, index, frame=None):
    """Gives a frame to a stream."""
    (standing_frame, truth), *_ = standing(1)
    frame = frame or Frame(index, 100_000 * index, standing_frame.image, standing_frame.boxes)
    call_at(lambda now_ns: FEEDS[stream].coming.append(Arrived(index, 100_000 * index, now_ns, frame, truth)))


def show_and_wait(stream, index):
    """Gives a frame to a stream, and returns when it has been answered."""
    polls = FEEDS[stream].polls
    show(stream, index)
    # A poll that has just found nothing may be counted after this one was shown.
    wait_until(lambda: FEEDS[stream].polls > polls + 2)


class Raising:
    """Picture of a frame that raises an error when it is read."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, _name):
        raise self.error


def show_damaged(stream, error):
    show(stream, 0, Frame(0, 0, Raising(error), np.array([[0, 0, 9, 9]], np.float32)))


def configure_all(actor, share_milli=500):
    for serial, one in enumerate(actor.streams.values(), 1):
        one.set_inference(EVERY, share_milli, serial)


def receive_bytes(actor, model, version):
    actor.streams[CAM].receive_checkpoint(to_bytes(model), 0.9, ModelVersion(version), JOB)


def test_roll_back_serves_earlier_weights_as_a_new_version(actor, good):
    assert part_right(actor) > 0.9
    receive_bytes(actor, turned_around(good), 1)
    (swapped,) = events_of(actor, 1)
    assert isinstance(swapped, ev.ModelSwapped)
    assert (swapped.stream, swapped.version, swapped.job, swapped.validation_accuracy) == (CAM, 1, JOB, 0.9)
    assert part_right(actor) < 0.5
    actor.streams[CAM].roll_back(to_bytes(good), ModelVersion(2), BASE_VERSION)
    (back,) = events_of(actor, 1)
    assert isinstance(back, ev.RolledBack)
    assert (back.stream, back.version, back.of) == (CAM, 2, 0)
    assert 0 <= back.stall_us < 100_000
    assert part_right(actor) > 0.9


def test_receive_of_an_older_version_is_ignored(actor, good):
    actor.streams[CAM].roll_back(to_bytes(good), ModelVersion(3), BASE_VERSION)
    receive_bytes(actor, turned_around(good), 2)
    (only,) = events_of(actor, 1)
    assert only.version == 3
    assert actor.poll(0.05) == []
    assert part_right(actor) > 0.9


def test_share_zero_waits_for_the_frame_in_analysis(actor, common):
    """Otherwise the loop would wait for the share, and the camera's return would never be reported."""
    cam = actor.streams[CAM]
    cam.set_inference(EVERY, 1000, 1)
    common.bucket.charge_use(10**15)  # more than is earned: the next batch waits
    show(CAM, 0)
    wait_until(lambda: actor.shared.models.queued)
    with ThreadPoolExecutor(1) as threads:
        at_zero = threads.submit(cam.set_inference, EVERY, 0, 3)
        wait_until_blocked(*threads._threads)
        assert not at_zero.done()
        common.bucket.release()
        assert at_zero.result().share_milli == 0
    assert not actor.shared.models.queued
    show_and_wait(CAM, 1)
    actor.end_run(10**9)
    assert read_predictions(common.folder.predictions(CAM)).analysed.tolist() == [True, False]


def test_service_writes_answers_by_the_hour_and_nothing_for_a_report(common, good):
    common.keeps_hours = True
    for frames in ([0, 1], [1, 2]):  # the second process is shown frame 1 again
        made = actor_of(common, CAM)
        made.load_streams((0,), to_bytes(good))
        call_at(made.start_run)
        made.streams[CAM].set_inference(EVERY, 1000, 1)
        for frame in frames:
            show_and_wait(CAM, frame)
        assert [ended.stream for ended in made.end_run(10**9)] == [CAM]
    rows = next_rows(common.folder.hours(CAM), -1)
    rest = next_rows(common.folder.hours(CAM), int(rows.frame[-1]))
    assert rows.frame.tolist() + rest.frame.tolist() == [0, 1, 2]
    assert rows.analysed.all()
    assert [path.name for path in (common.folder.path / "predictions").iterdir()] == [CAM]
    for path in (common.folder.reference(CAM), common.folder.without_retraining(CAM)):
        assert list(path.parent.iterdir()) == []


def test_frames_for_an_audit_have_the_answer_that_was_in_force(common, good):
    """Also those that λ skips, and those before the first answer."""
    common.audit_frames = 9
    made = actor_of(common, CAM)
    made.load_streams((0,), to_bytes(good))
    call_at(made.start_run)
    show_and_wait(CAM, 1)  # without a share
    made.streams[CAM].set_inference(InferenceConfig(3, SIDE), 1000, 1)
    for frame in (2, 3, 4, 5, 6):
        show_and_wait(CAM, frame)
    drawn = made.streams[CAM].drain_audit_frames()
    assert made.streams[CAM].drain_audit_frames().arrived == 0
    made.end_run(10**9)
    answers = {one.frame: one.answer and one.answer.frame for one in drawn.frames}
    assert (drawn.arrived, answers) == (6, {1: None, 2: 2, 3: 3, 4: 3, 5: 3, 6: 6})
    assert all(len(one.answer.boxes) for one in drawn.frames if one.answer is not None)
    rows = read_predictions(common.folder.predictions(CAM))
    assert dict(zip(rows.frame.tolist(), rows.answered_by.tolist(), strict=True)) == {
        frame: -1 if by is None else by for frame, by in answers.items()
    }


def test_streams_of_a_process_are_answered_in_one_call(two, common, monkeypatch):
    calls, predict = [], MultiModelPredictor.predict
    monkeypatch.setattr(
        MultiModelPredictor, "predict", lambda self, asked: calls.append(len(asked)) or predict(self, asked)
    )
    configure_all(two)
    common.bucket.charge_use(10**15)
    for stream in (CAM, OTHER):
        show(stream, 0)
    wait_until(lambda: two.shared.models.queued == 2)
    common.bucket.release()
    wait_until(lambda: calls)
    two.end_run(10**9)
    assert calls == [2]
    (_, truth), *_ = standing(1)
    right = {
        stream: np.mean(read_predictions(common.folder.predictions(stream)).classes == truth.classes)
        for stream in (CAM, OTHER)
    }
    assert right[CAM] > 0.9
    assert right[OTHER] < 0.5


def test_process_holds_the_sum_of_its_streams_shares(two):
    cam, other, share_of_process = two.streams[CAM], two.streams[OTHER], two.shared.share
    assert cam.set_inference(EVERY, 300, 1).share_milli == 300
    assert other.set_inference(EVERY, 500, 2).share_milli == 500
    assert share_of_process.holds_milli == 800
    assert cam.set_inference(EVERY, 100, 4).share_milli == 100
    assert cam.set_inference(EVERY, 900, 3) is None, "it was overtaken"
    assert share_of_process.holds_milli == 600
    two.remove_stream(OTHER)
    assert share_of_process.holds_milli == 100
    assert OTHER not in two.streams


def test_use_is_charged_to_the_stream_of_the_crops(two, common, monkeypatch):
    monkeypatch.setattr(ekya.runtime.actors.stream_inference, "MEASURE_EVERY_S", 0.3)
    configure_all(two)
    show_and_wait(CAM, 0)
    common.bucket.charge_use(30_000_000)
    used = {}
    while len(used) < 2 or not used[CAM]:
        for event in two.poll(5.0):
            if isinstance(event, ev.ShareMeasured):
                used[event.stream] = max(event.share_milli, used.get(event.stream, 0))
    assert used[OTHER] == 0


def test_stream_that_fails_is_reported_and_the_other_goes_on(two, common, good):
    configure_all(two)
    broken = two.streams[CAM]
    show_damaged(CAM, ValueError("a damaged frame"))
    (died,) = events_of(two, 1)
    assert isinstance(died, ev.WorkerDied)
    assert (died.stream, died.role, died.reason) == (CAM, ev.Role.INFERENCE, "ValueError: a damaged frame")
    assert two.shared.share.holds_milli == 500, "its share is released before its death is reported"
    show_and_wait(OTHER, 0)

    call_at(lambda at_ns: two.rejoin_stream(config_of(common, CAM), to_bytes(good), at_ns), in_s=-1.0)
    assert two.streams[CAM] is not broken
    assert two.streams[CAM].set_inference(EVERY, 400, 7).share_milli == 400
    assert two.shared.share.holds_milli == 900
    show_and_wait(CAM, 3)
    two.end_run(10**9)
    assert read_predictions(common.folder.predictions(OTHER)).analysed.tolist() == [True]
    assert read_predictions(common.folder.predictions(CAM)).frame[-1] == 3


def test_need_is_measured_of_each_stream_separately(two, monkeypatch):
    monkeypatch.setattr(ekya.runtime.actors.stream_inference, "MEASURE_EVERY_S", 0.2)
    configure_all(two)
    for at in range(3):
        show_and_wait(CAM, at)
    measured = []
    while not measured:
        measured = [event for event in two.poll(5.0) if isinstance(event, ev.NeedMeasured)]
    assert {(one.stream, one.config) for one in measured} == {(CAM, EVERY)}
    assert all(one.share_milli > 0 for one in measured)


def test_drift_is_reported_when_it_is_noticed(common, good, monkeypatch):
    """The monitor takes the fourth frame for drift."""

    def see(frame):
        return Drift(frame.t_us, 100_000, "doubt", 0.9, 0.1, 8.0) if frame.t_us >= 400_000 else None

    monkeypatch.setattr(
        ekya.runtime.actors.stream_inference, "drift_monitor", lambda _: SimpleNamespace(observe_frame=see)
    )
    made = actor_of(common, CAM)
    made.load_streams((0,), to_bytes(good))
    call_at(made.start_run)
    configure_all(made)
    for at in (0, 4):
        show_and_wait(CAM, at)
    (drift,) = events_of(made, 1)
    made.end_run(0)
    assert isinstance(drift, ev.DriftDetected)
    assert (drift.stream, drift.window, drift.since_us) == (CAM, 400_000 // WINDOW_US, 100_000)
    assert drift.reason == "doubt is 0.9 since 0.1 s and was 0.1 before: 8.0 standard deviations"
    assert made.poll(0.05) == []


class Golden:
    """Golden detector that finds two objects in every picture.

    Attributes:
        asked: shapes of the pictures.
        goes_on: cleared to let it wait within a picture.
    """

    BOXES = np.array([[4, 2, 30, 14], [40, 0, 70, 16]], np.float32)
    runs_on = ON_CPU

    def __init__(self):
        self.asked = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def find_objects(self, image):
        self.asked.append(image.shape)
        assert self.goes_on.wait(HANG_GUARD_S)
        return GoldenObjects(self.BOXES, np.array([2, 0]), np.zeros((0, 4), np.float32))


THIRD = InferenceConfig(3, GOLDEN_RESOLUTION)


@pytest.fixture
def golden(common, monkeypatch):
    """Golden detector, of which λ are offered; a frame of it costs 5 of the model's pictures."""
    made, module = Golden(), ekya.pipeline.golden_inference
    monkeypatch.setattr(module, "open_golden", lambda *_: made)
    monkeypatch.setattr(module, "fleet_classes", lambda _: NAMES)
    common.fleet.golden, common.fleet.edge = None, SimpleNamespace(task=None)
    common.fleet.inference.golden_every = (3,)
    costs = StreamCosts(
        FPS,
        {SIDE: 0.02, GOLDEN_RESOLUTION: 0.1},
        per_object=False,
        following_gpu_s={GOLDEN_RESOLUTION: 0.005},
    )
    common.costs = {CAM: costs, OTHER: costs}
    return made


@pytest.fixture
def both_golden(golden, two):
    """Actor of two streams that the golden detector answers."""
    golden.asked.clear()
    for serial, one in enumerate(two.streams.values(), 1):
        one.set_inference(THIRD, 500, serial)
    return two


def test_golden_detector_is_warmed_up_once_for_all_streams(golden, two):
    assert len(golden.asked) == 1


def test_golden_detector_answers_every_third_frame_and_its_boxes_are_followed(both_golden, common, golden):
    for index in range(4):
        show_and_wait(CAM, index)
    both_golden.end_run(10**9)
    rows = read_predictions(common.folder.predictions(CAM))
    assert rows.analysed.tolist() == [True, False, False, True]
    assert rows.answered_by.tolist() == [0, 1, 2, 3]
    assert set(rows.resolution.tolist()) == {GOLDEN_RESOLUTION}
    assert rows.classes.tolist() == [2, 0] * 4
    assert rows.boxes == pytest.approx(np.tile(golden.BOXES, (4, 1)), abs=0.5), "nothing moves"
    assert len(golden.asked) == 2


def test_use_of_golden_and_followed_frames_is_counted_in_the_models_pictures(both_golden, monkeypatch):
    counted = []
    monkeypatch.setattr(SharedUse, "count_pictures", lambda _self, _owner, pictures: counted.append(pictures))
    for index in range(4):
        show_and_wait(CAM, index)
    assert counted == pytest.approx([5.0, 0.25, 0.25, 5.0])


def test_frame_of_another_size_is_answered_by_the_frame_before(both_golden, common, monkeypatch):
    counted = []
    monkeypatch.setattr(SharedUse, "count_pictures", lambda *_: counted.append(1))
    show_and_wait(CAM, 0)
    polls = FEEDS[CAM].polls
    show(CAM, 1, Frame(1, 100_000, np.zeros((20, 30, 3), np.uint8), np.zeros((0, 4), np.float32)))
    wait_until(lambda: FEEDS[CAM].polls > polls + 1)
    both_golden.end_run(10**9)
    rows = read_predictions(common.folder.predictions(CAM))
    assert (rows.analysed.tolist(), rows.answered_by.tolist()) == ([True, False], [0, 0])
    assert len(counted) == 1, "boxes were followed into no frame"


def test_stream_that_waits_for_the_golden_detector_has_no_batch_under_way(golden, common, good, monkeypatch):
    """A change of shares waits for batches under way, and would wait for each of these."""
    under_way, most, asking, scope = [], [], [], common.bucket.scope
    find = ekya.pipeline.golden_inference.GoldenInference.find_objects

    @contextmanager
    def counted():
        under_way.append(1)
        most.append(len(under_way))
        with scope():
            yield
        under_way.pop()

    def ask(model, image):
        asking.append(1)
        return find(model, image)

    monkeypatch.setattr(ekya.pipeline.golden_inference.GoldenInference, "find_objects", ask)
    common.bucket.scope = counted
    made = actor_of(common, CAM, OTHER)
    made.load_streams((0, 0), to_bytes(good))
    call_at(made.start_run)
    for serial, one in enumerate(made.streams.values(), 1):
        one.set_inference(THIRD, 500, serial)
    golden.goes_on.clear()
    show(CAM, 0)
    wait_until(lambda: len(golden.asked) == 2)  # the first one was to warm it up
    show(OTHER, 0)
    wait_until(lambda: len(asking) == 2)
    golden.goes_on.set()
    made.end_run(10**9)
    assert len(golden.asked) == 3
    assert max(most) == 1


def test_stream_that_loses_the_gpu_ends_its_process(two, monkeypatch):
    """Restarted beside the other streams it would fail again, and so would they."""
    error, ended = torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), []
    monkeypatch.setattr(ekya.runtime.actors.stream_inference, "end_process_if_gpu_is_lost", ended.append)
    configure_all(two)
    show_damaged(CAM, error)
    events_of(two, 1)
    assert ended == [error]


def test_stream_that_fails_without_a_report_ends_its_process(two, monkeypatch):
    """There may be no memory to report with."""
    ended = []
    monkeypatch.setattr(ekya.runtime.actors.inference_actor.os, "_exit", ended.append)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def no_memory(_event):
        raise MemoryError

    configure_all(two)
    events_of(two, 0)
    two.poll(0.0)
    assert ended == []
    monkeypatch.setattr(two.streams[CAM]._reports, "report_event", no_memory)
    show_damaged(CAM, MemoryError())
    wait_until(lambda: two.poll(0.0) or ended)
    assert ended[0] == 1


def test_stream_whose_loop_hangs_ends_its_process(two, monkeypatch):
    ended, goes_on = [], threading.Event()
    monkeypatch.setattr(ekya.runtime.actors.inference_actor.os, "_exit", ended.append)
    configure_all(two)
    two.poll(0.0)
    assert ended == []
    monkeypatch.setattr(two.streams[CAM]._record, "flush", goes_on.wait)
    monkeypatch.setattr(ekya.runtime.actors.stream_inference, "HUNG_S", 0.5)
    wait_until(lambda: two.poll(0.0) or ended)
    goes_on.set()
    assert ended[0] == 1


def test_stream_that_leaves_while_its_loop_hangs_ends_its_process(two, monkeypatch):
    """What it holds cannot be taken from it in any other way."""
    ended, hangs, goes_on = [], threading.Event(), threading.Event()

    def flush():
        hangs.set()
        goes_on.wait()

    monkeypatch.setattr(ekya.runtime.actors.inference_actor.os, "_exit", ended.append)
    configure_all(two)
    two.remove_stream(OTHER)
    assert ended == [], "its loop did not hang"
    monkeypatch.setattr(two.streams[CAM]._record, "flush", flush)
    assert hangs.wait(HANG_GUARD_S)
    monkeypatch.setattr(ekya.runtime.actors.stream_inference, "HUNG_S", 0.2)
    two.remove_stream(CAM)
    goes_on.set()
    assert ended == [1]


def test_threads_that_have_written_base_models_are_not_kept(common, good, monkeypatch):
    """A service makes one for every camera that is added."""
    may_write, written = threading.Event(), []

    def write(path, _content):
        if path == common.folder.model(CAM, BASE_VERSION):
            may_write.wait()
        written.append(path)

    monkeypatch.setattr(ekya.runtime.actors.inference_actor, "base_model", lambda *_: good)
    monkeypatch.setattr(ekya.runtime.actors.inference_actor, "write_bytes_atomic", write)
    actor = actor_of(common)
    for stream in (CAM, *[OTHER] * 4):
        actor.make_base_weights(stream)
        if stream != CAM:
            actor._savers[-1].join()
    first, last = actor._savers
    assert (first.is_alive(), last.is_alive()) == (True, False)
    may_write.set()
    actor.end_run(0)
    assert len(written) == 5, "the end waits for what is not written yet"


def test_stream_that_leaves_frees_its_weights(two):
    configure_all(two)
    weights = weakref.ref(serving(two, OTHER).predictor)
    two.remove_stream(OTHER)
    gc.collect()
    assert weights() is None


def test_process_made_again_has_no_streams_until_they_join(common, good):
    made = actor_of(common)
    assert made.load_streams(()) == {}
    made.remove_stream(CAM)
    assert made.streams == {}
    call_at(lambda now_ns: made.rejoin_stream(config_of(common, CAM), to_bytes(good), now_ns))
    assert part_right(made) > 0.9
    assert [row.stream for row in made.end_run(0)] == [CAM]


def test_file_whose_decoder_aborts_is_lost_and_others_go_on(common, good, monkeypatch):
    feeds = {CAM: Aborted, OTHER: HandFed}
    monkeypatch.setattr(ekya.runtime.actors.inference_actor, "Feed", lambda *of: feeds[of[2]](*of))
    actor = actor_of(common, CAM, OTHER)
    assert {stream: known.died for stream, known in actor.load_streams((0, 0), to_bytes(good)).items()} == {
        CAM: "killed by signal SIGABRT",
        OTHER: None,
    }
    call_at(actor.start_run)
    lost, ended = events_of(actor, 2)
    assert (type(lost), lost.stream, lost.reason) == (ev.StreamLost, CAM, "killed by signal SIGABRT")
    assert (type(ended), ended.stream) == (ev.StreamEnded, CAM)
    show_and_wait(OTHER, 0)
    rows = actor.end_run(0)
    assert [(row.stream, row.decoded, row.set_aside) for row in rows] == [
        (CAM, 0, "killed by signal SIGABRT"),
        (OTHER, 1, None),
    ]


def test_base_weights_are_saved_for_every_stream(common, good, monkeypatch):
    monkeypatch.setattr(ekya.runtime.actors.inference_actor, "base_model", lambda *_: good)
    actor = actor_of(common)
    weights, _ = actor.make_base_weights()
    actor.end_run(0)
    assert torch.equal(from_bytes(weights).head.weight, good.head.weight)
    for stream in (CAM, OTHER):
        assert load_model(common.folder.model(stream, BASE_VERSION)).classes == good.classes


def test_spare_process_has_no_share_before_a_stream_joins(common, good):
    attached = []
    common.shares.attach_job = lambda job: attached.append(job) or common.bucket
    spare = actor_of(common)
    spare.warm_up(to_bytes(good))
    assert (attached, spare.poll(0.0)) == ([], [])
    for stream in (CAM, OTHER):
        call_at(lambda now_ns, of=stream: spare.rejoin_stream(config_of(common, of), to_bytes(good), now_ns))
    assert len(attached) == 1
    assert part_right(spare) > 0.9
    assert {row.stream for row in spare.end_run(0)} == {CAM, OTHER}


def test_frame_on_a_gpu_waits_for_no_share(common, good, monkeypatch):
    """Its share is the rate that was planned."""
    module = ekya.runtime.actors.inference_actor
    monkeypatch.setattr(module, "MultiModelPredictor", lambda _, way: MultiModelPredictor("cpu", way))
    common.device = "cuda"
    made = actor_of(common, CAM)
    made.load_streams((0,), to_bytes(good))
    with common.bucket.scope():
        pass  # at share 0 it would wait
    made.end_run(0)
