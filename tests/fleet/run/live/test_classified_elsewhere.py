"""Frames that another site's process classifies, over HTTP but without Ray."""

import time
from contextlib import nullcontext

import numpy as np
import pytest
from by_hand import ByHand

from ekya.core.units import ModelVersion, StreamId
from ekya.fleet.policy.moves import Move
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.calls import LocalHandle, public_methods
from ekya.fleet.run.live.classified_elsewhere import ClassifiedElsewhere
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training.actors import TrainingActor
from ekya.fleet.run.training.crew import NoProcessError
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import MultiModelPredictor
from ekya.runtime.moved_model import ANSWERS_WITHIN_S, MovedModel
from ekya.runtime.weights.model_batcher import ModelBatcher

CAM = StreamId("cam")
NORTH, SOUTH = SiteName("north"), SiteName("south")
CLASSES = ("car", "person", "bus")
IMAGES = np.random.default_rng(3).integers(0, 255, (6, 32, 32, 3), dtype=np.uint8)
PATIENCE_S = 10.0
MOVE = Move(NORTH, CAM, SOUTH, 300, 0, 0, 60_000_000, 4000, 0.5, 45.0, 0.2, 0.0, number=3)


class Site:
    """A site with one process that may classify, reached over HTTP."""

    def __init__(self):
        self.process = LocalHandle(TrainingActor("a guest", CpuShares(1)), 4)
        self.server = SiteServer("127.0.0.1", 0, "secret" * 9)
        self.handle = self.server.offer("guest", self.process, public_methods(TrainingActor))


@pytest.fixture
def site():
    made = Site()
    yield made
    made.server.close()
    made.process.end()


def model_of(seed):
    model = build_edge_model(CLASSES, 0, seed)
    return model.eval()


@pytest.fixture
def batcher():
    made = ModelBatcher(nullcontext, CLASSES, MultiModelPredictor("cpu"))
    made.add(CAM, model_of(1), ModelVersion(0), lambda event, stall_us: None)
    return made


def moved_to(site):
    return MovedModel(site.handle, 300, CLASSES, 32, (32,))


def test_another_site_gives_the_answers_that_this_process_would_have_given(site, batcher) -> None:
    (classes, confidence), _ = batcher.answer(CAM, IMAGES, 32)
    home = []
    assert batcher.move(CAM, moved_to(site), lambda: home.append(1))
    (there, sure), version = batcher.answer(CAM, IMAGES, 32)
    np.testing.assert_array_equal(there, classes)
    np.testing.assert_allclose(sure, confidence, rtol=1e-4)
    assert (version, there.dtype, sure.dtype, home) == (0, np.int64, np.float32, [])
    assert batcher.answer(CAM, IMAGES[:0], 32)[0][0].shape == (0,)


@pytest.mark.parametrize("how", ["the process ends", "the site ends", "it belongs to others"])
def test_when_the_site_is_gone_every_request_is_answered_here_without_delay(site, batcher, how) -> None:
    home = []
    batcher.move(CAM, moved_to(site), lambda: home.append(1))
    if how == "the process ends":
        site.process.end()
    elif how == "the site ends":
        site.server.close()
    else:
        site.process.call("rest").result(PATIENCE_S)
    began_s = time.monotonic()
    for _ in range(3):
        (classes, _), version = batcher.answer(CAM, IMAGES, 32)
        assert (len(classes), version) == (6, 0)
    assert time.monotonic() - began_s < 3.0
    assert (home, batcher.is_moved(CAM)) == ([1], False)


def test_a_site_that_says_nothing_delays_one_request(site, batcher) -> None:
    home, silent = [], ByHand(TrainingActor("a guest", CpuShares(1)))
    batcher.move(CAM, MovedModel(silent, 300, CLASSES, 32, (32,)), lambda: home.append(1))
    silent.silent = True
    began_s = time.monotonic()
    for _ in range(3):
        batcher.answer(CAM, IMAGES, 32)
    assert ANSWERS_WITHIN_S <= time.monotonic() - began_s < ANSWERS_WITHIN_S + 2.0
    assert home == [1]


class Processes:
    """Source of one process; ``none`` of none."""

    def __init__(self):
        self.none, self.back, self.nodes = False, [], []

    def take(self, node):
        self.nodes.append((node.site, node.share_milli))
        if self.none:
            raise NoProcessError("south gives no process away: it is full")
        return "a process"

    def give_back(self, node, process):
        self.back.append((node.site, process))


@pytest.fixture
def server():
    """Inference elsewhere, its source of processes, and what streams and the executor are told."""
    processes, told = Processes(), []
    made = ClassifiedElsewhere(
        processes, lambda *order: told.append(order), lambda *failed: told.append(failed)
    )
    return made, processes, told


def soon(condition):
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.002)


def test_a_stream_is_told_its_process_and_the_host_gets_it_back(server) -> None:
    made, processes, told = server
    made.begin(MOVE)
    soon(lambda: told)
    assert (told, processes.nodes) == ([(CAM, "a process", 300, 4000)], [(SOUTH, 300)])
    assert made.end(MOVE, 20_000_000) == MOVE.moved_mb(20_000_000)
    assert told[1:] == [(CAM, None, 0, 0)]
    assert processes.back == [(SOUTH, "a process")]
    made.end(MOVE, 20_000_000)
    assert len(processes.back) == 1


def test_a_move_without_a_process_fails_and_one_that_ended_before_gives_it_back(server) -> None:
    made, processes, told = server
    processes.none = True
    made.begin(MOVE)
    soon(lambda: told)
    assert told == [(CAM, "south gives no process away: it is full")]
    made.end(MOVE, 0)
    processes.none = False
    made._begin(MOVE)
    assert (processes.back, len(told)) == ([(SOUTH, "a process")], 1)
