"""Tests of the models of a process: requests in batches, and hot swaps between them."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import HANG_GUARD_S, wait_until

from ekya.core.events import ModelSwapped
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import MultiModelPredictor
from ekya.pipeline.inference import ServingDetector
from ekya.runtime.weights.model_batcher import ModelBatcher

CAM = StreamId("cam")
CLASSES = tuple("abcdefgh")
FORBIDDEN = 7


class Models:
    """Fake of several models: a class is the number on the crop, moved by the number of its model.

    A call waits until ``may`` is set, and fails if a crop shows the forbidden number.
    """

    def __init__(self):
        self.predictors = SimpleNamespace(predictor_for=lambda model: model)
        self.calls, self.owners = [], {}
        self.may = threading.Event()
        self.may.set()
        self._inside = threading.Lock()

    def add_owner(self, owner, predictor):
        self.owners[owner] = predictor

    def remove_owner(self, owner):
        del self.owners[owner]

    def predict(self, requests):
        assert self._inside.acquire(blocking=False), "calls overlap"
        numbers = [int(one.crops[0]) for one in requests]
        self.calls.append(sorted(numbers))
        assert self.may.wait(HANG_GUARD_S)
        self._inside.release()
        if FORBIDDEN in numbers:
            raise ValueError("a crop that no model can read")
        return [
            (np.array([(number + one.predictor.moved) % len(CLASSES)]), np.array([one.resolution / 100]))
            for number, one in zip(numbers, requests, strict=True)
        ]


class Gate:
    """Scope of a call that opens when ``opened`` is set, and ends when ``ended`` is set."""

    def __init__(self):
        self.entered, self.opened, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.ended.set()

    @contextmanager
    def __call__(self):
        self.entered.set()
        assert self.opened.wait(HANG_GUARD_S)
        yield
        assert self.ended.wait(HANG_GUARD_S)


@pytest.fixture
def models():
    return Models()


def model(moved):
    return SimpleNamespace(classes=CLASSES, detector=None, moved=moved)


def batcher_of(models, scope=nullcontext, on_swap=lambda _event, _stall_us: None):
    made = ModelBatcher(scope, CLASSES, models)
    made.add_stream(CAM, model(0), BASE_VERSION, on_swap)
    return made


def ask(batcher, number, stream=CAM):
    (classes, _), version = batcher.answer_images(stream, np.array([number]), 32)
    return int(classes[0]), version


def test_classify_alone_calls_immediately(models):
    batcher = batcher_of(models)
    assert [ask(batcher, number) for number in range(3)] == [(0, 0), (1, 0), (2, 0)]
    assert models.calls == [[0], [1], [2]]


def test_classify_during_a_call_shares_the_next_one(models):
    batcher = batcher_of(models)
    models.may.clear()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, batcher, 0)]
        wait_until(lambda: models.calls)
        answers += [pool.submit(ask, batcher, number) for number in (1, 2, 3)]
        wait_until(lambda: batcher.queued == 3)
        models.may.set()
        assert [answer.result(HANG_GUARD_S)[0] for answer in answers] == [0, 1, 2, 3]
    assert models.calls == [[0], [1, 2, 3]]


def test_classify_more_than_a_call_takes_answers_the_newest_first(models):
    batcher = batcher_of(models)
    models.may.clear()

    def ask_many(number):
        return batcher.answer_images(CAM, np.full(60, number), 32)[0][0][0]

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask_many, 0)]
        wait_until(lambda: models.calls)
        for number in (1, 2, 3, 4):
            answers.append(pool.submit(ask_many, number))
            wait_until(lambda number=number: batcher.queued == number)
        models.may.set()
        assert [answer.result(HANG_GUARD_S) for answer in answers] == [0, 1, 2, 3, 4]
    # The thread that makes the call has its own answer, so it is one of the two.
    assert [len(numbers) for numbers in models.calls[:2]] == [1, 2]
    assert 4 in models.calls[1]


def test_classify_before_the_scope_opens_shares_the_call(models):
    gate = Gate()
    batcher = batcher_of(models, gate)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(ask, batcher, number) for number in range(3)]
        wait_until(lambda: batcher.queued == 3)
        gate.opened.set()
        assert [answer.result(HANG_GUARD_S)[0] for answer in answers] == [0, 1, 2]
    assert models.calls == [[0, 1, 2]]


def test_scope_that_ends_late_delays_only_the_calling_thread(models):
    """The scope of a token bucket ends when the debt is paid; the other threads have their answers before."""
    gate = Gate()
    gate.ended.clear()
    batcher = batcher_of(models, gate)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(ask, batcher, 1)
        assert gate.entered.wait(HANG_GUARD_S)
        follower = pool.submit(ask, batcher, 2)
        wait_until(lambda: batcher.queued == 2)
        gate.opened.set()
        assert follower.result(HANG_GUARD_S)[0] == 2
        assert not leader.done()
        gate.ended.set()
        assert leader.result(HANG_GUARD_S)[0] == 1


def test_scope_that_fails_raises_in_its_thread_and_another_calls(models):
    opened, entered, tries = threading.Event(), threading.Event(), []

    @contextmanager
    def scope():
        tries.append(None)
        entered.set()
        assert opened.wait(HANG_GUARD_S)
        if len(tries) == 1:
            raise RuntimeError("no share")
        yield

    batcher = batcher_of(models, scope)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, batcher, 1)
        assert entered.wait(HANG_GUARD_S)
        second = pool.submit(ask, batcher, 2)
        wait_until(lambda: batcher.queued == 2)
        opened.set()
        assert second.result(HANG_GUARD_S)[0] == 2
        with pytest.raises(RuntimeError, match="no share"):
            first.result(HANG_GUARD_S)
    assert batcher.queued == 0


def test_request_that_fails_raises_in_its_thread_only(models):
    gate = Gate()
    batcher = batcher_of(models, gate)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, batcher, number) for number in range(3)]
        guilty = pool.submit(ask, batcher, FORBIDDEN)
        wait_until(lambda: batcher.queued == 4)
        gate.opened.set()
        assert [other.result(HANG_GUARD_S)[0] for other in others] == [0, 1, 2]
        with pytest.raises(ValueError, match="no model can read"):
            guilty.result(HANG_GUARD_S)
    assert ask(batcher, 5)[0] == 5


def test_many_threads_get_their_own_answers(models):
    batcher = batcher_of(models)

    def ask_often(owner):
        numbers = [(owner + step) % FORBIDDEN for step in range(50)]
        return [ask(batcher, number)[0] for number in numbers] == numbers

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask_often, range(8)))


def swap_of(version):
    return ModelSwapped(0, CAM, ModelVersion(version), JobId(7), 0.9, 0)


def prepare(batcher, version):
    """Prepares weights whose answers are moved by their version."""
    prepared = batcher.prepare_weights(CAM, model(version), ModelVersion(version))
    batcher.serve_next(CAM, prepared, swap_of(version))


def test_weights_pending_when_the_call_begins_answer_it(models):
    gate, swaps = Gate(), []
    batcher = batcher_of(models, gate, lambda event, stall_us: swaps.append((event.version, stall_us >= 0)))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, batcher, 1)
        assert gate.entered.wait(HANG_GUARD_S)
        prepare(batcher, 2)
        gate.opened.set()
        assert answer.result(HANG_GUARD_S) == (3, 2)
    assert swaps == [(2, True)]
    assert batcher.serving_weights(CAM).version == 2


def test_hot_swap_without_requests_serves_the_pending_weights(models):
    swaps = []
    batcher = batcher_of(models, on_swap=lambda event, _: swaps.append(event.version))
    prepare(batcher, 1)
    assert (batcher.serving_weights(CAM).version, swaps) == (0, [])
    for _ in range(2):
        batcher.hot_swap(CAM)
    assert (batcher.serving_weights(CAM).version, swaps) == (1, [1])


def test_older_version_never_replaces_a_newer_one(models):
    batcher = batcher_of(models)
    prepare(batcher, 3)
    prepare(batcher, 2)
    assert ask(batcher, 1) == (4, 3)


def test_streams_are_answered_by_their_own_models(models):
    batcher = batcher_of(models)
    other = StreamId("other")
    batcher.add_stream(other, model(4), BASE_VERSION, lambda _event, _stall_us: None)
    assert [ask(batcher, 1), ask(batcher, 1, other)] == [(1, 0), (5, 0)]
    batcher.remove_stream(other)
    assert list(models.owners) == [CAM]


def test_detector_pending_weights_find_from_the_next_frame_on():
    first, second = (build_edge_model(CLASSES, 0, seed, FASTESTDET) for seed in range(2))
    image = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8)
    batcher = ModelBatcher(nullcontext, CLASSES, MultiModelPredictor("cpu", PLAIN))
    batcher.add_stream(CAM, first, BASE_VERSION, lambda _event, _stall_us: None)
    for weights, version in ((first, 0), (second, 1)):
        if version:
            batcher.serve_next(CAM, batcher.prepare_weights(CAM, second, ModelVersion(1)), swap_of(1))
        (found,), by = batcher.answer_images(CAM, image, 64)
        (expected,) = ServingDetector(weights, CLASSES).predict(image, 64)
        assert by == version
        assert len(found.boxes) > 0
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        np.testing.assert_array_equal(found.confidence, expected.confidence)


def test_streams_that_may_have_killed_a_process_are_answered_one_by_one(models):
    """The next death then names one of them."""
    marks = []

    @contextmanager
    def answering(streams):
        marks.append(streams)
        yield

    batcher = ModelBatcher(nullcontext, CLASSES, models, answering)
    suspects = {"cam-1": math.inf, "cam-2": math.inf, "cam-3": 0.0, "cam-4": 0.0}
    for stream, alone_until_s in suspects.items():
        batcher.add_stream(stream, model(0), BASE_VERSION, None, alone_until_s)
    models.may.clear()
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(ask, batcher, 0, "cam-4")]
        wait_until(lambda: models.calls)
        answers += [pool.submit(ask, batcher, at, stream) for at, stream in enumerate(suspects)]
        wait_until(lambda: batcher.queued == 4)
        models.may.set()
        assert [answer.result(HANG_GUARD_S)[0] for answer in answers] == [0, 0, 1, 2, 3]
    assert [sorted(streams) for streams in marks][:2] == [["cam-4"], ["cam-3", "cam-4"]]
    assert sorted(marks[2:]) == [["cam-1"], ["cam-2"]]
