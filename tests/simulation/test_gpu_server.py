"""The server of a GPU on virtual time: batches of all that wait, newest first, beside trainers."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.units import US_PER_S, StreamId
from ekya.pipeline.costs import load_card
from ekya.pipeline.gpu_facts import GpuFacts, shipped_cards, trainers_per_gpu
from ekya.simulation.emulated.frame_queues import FrameWork, InferenceServer, ServerLoad
from ekya.simulation.emulated.machines import GpuServers

FACTS = GpuFacts(
    cores=4.0,
    pass_s=0.001,
    beside_training=0.5,
    training_speed=((0, 0.0), (250, 1.0), (1000, 1.0)),
    reading_s=0.001,
    frame_s=0.002,
)


class Frame:
    def __init__(self, index, t_us):
        self.index, self.t_us = index, t_us


class Frames:
    """Frames of a camera at a rate; records what was analysed and what was given up."""

    def __init__(self, fps, seconds, gpu_s=0.0, share_milli=10):
        self.arrivals = [Frame(at, round(at * US_PER_S / fps)) for at in range(int(fps * seconds))]
        self.fps, self.every, self.gpu_s, self.share_milli = fps, 1, gpu_s, share_milli
        self.waiting = None
        self.analysed, self.given_up, self.replaced, self.batch = [], [], 0, []

    @property
    def next_us(self):
        return self.arrivals[0].t_us if self.arrivals else None

    @property
    def has_waiting(self):
        return self.waiting is not None and self.share_milli > 0

    def admit_next_frame(self):
        self.replaced += self.waiting is not None
        self.waiting = self.arrivals.pop(0)

    def take_waiting(self):
        waiting, self.waiting = self.waiting, None
        return waiting

    def begin_analysis(self, waiting):
        self.analysed.append(waiting.index)
        return FrameWork(self.gpu_s, 6)

    def give_up(self, waiting):
        self.given_up.append(waiting.index)


def served(*cameras, seconds=10, load=None):
    server = InferenceServer(FACTS)
    for frames in cameras:
        server.add_stream(frames)
    server.load = ServerLoad() if load is None else load
    server.advance((seconds + 1) * US_PER_S)
    return cameras


def test_a_server_with_time_analyses_every_frame():
    for frames in served(*(Frames(10, 10) for _ in range(16))):
        assert frames.analysed == list(range(100))


def test_what_the_interpreter_has_no_time_for_is_replaced_by_newer_frames_of_all_cameras_alike():
    cameras = served(*(Frames(10, 10) for _ in range(100)))
    # 2 ms a frame are 500 a second, of 1000 that arrive.
    assert sum(len(frames.analysed) for frames in cameras) == pytest.approx(5000, rel=0.05)
    assert all(40 <= len(frames.analysed) <= 60 and not frames.given_up for frames in cameras)


def test_what_the_gpu_has_no_time_for_is_given_up_there():
    (slow,) = served(Frames(10, 10, gpu_s=0.3))
    assert slow.given_up and not slow.replaced
    assert sorted(slow.analysed + slow.given_up)[0] == 0


def test_a_gpu_that_also_trains_and_a_host_without_cores_serve_fewer_frames():
    (alone,) = served(Frames(100, 10, gpu_s=0.019))
    (beside,) = served(Frames(100, 10, gpu_s=0.019), load=ServerLoad(trains=True))
    (slowed,) = served(Frames(400, 10), load=ServerLoad(slowness=2.0))
    assert len(beside.analysed) == pytest.approx(len(alone.analysed) / 2, rel=0.15)
    assert len(slowed.analysed) == pytest.approx(2500, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 10])), min_size=1, max_size=6))
def test_each_frame_is_analysed_given_up_replaced_or_still_waits(cameras):
    frames = served(*(Frames(fps, 3, gpu_s=0.02, share_milli=share) for fps, share in cameras), seconds=3)
    for (fps, share), own in zip(cameras, frames, strict=True):
        gone = len(own.analysed) + len(own.given_up) + own.replaced + (own.waiting is not None)
        assert gone == 3 * fps
        assert own.analysed == sorted(set(own.analysed))
        assert share or not own.analysed


def test_several_trainings_have_as_many_processes_as_cores_allow_and_slow_down_with_the_host():
    cameras = {StreamId(f"cam-{n}"): Frames(10, 1) for n in range(4)}
    machine = GpuServers(FACTS, dict.fromkeys(cameras, 0), fps=40.0)
    first, *others = cameras
    machine.set_load(cameras, {first: 1.0}, prepares=False)
    assert machine.pace_of(first) == 1.0
    machine.set_load(cameras, dict.fromkeys(cameras, 1.0), prepares=False)
    assert machine.pace_of(first) == 0.5  # two trainers on four cores
    machine.set_load(cameras, dict.fromkeys(others, 0.2), prepares=False)
    assert machine.pace_of(others[0]) == 1.0
    crowded = GpuServers(FACTS, dict.fromkeys(cameras, 0), fps=4000.0)
    crowded.set_load(cameras, {first: 1.0}, prepares=False)
    assert crowded.pace_of(first) < 0.7


def test_trainers_by_cores():
    assert [trainers_per_gpu(cores, gpus) for cores, gpus in ((4, 1), (8, 1), (16, 1), (16, 4))] == [
        2,
        4,
        6,
        2,
    ]


@pytest.mark.parametrize("name", [name for name in shipped_cards() if load_card(Path(name)).gpu])
def test_each_figure_of_a_shipped_card_says_whether_it_was_measured(name):
    card = load_card(shipped_cards()[name])
    raw = json.loads(shipped_cards()[name].read_text())
    first = raw["gpu"].pop("first", None) or {}
    figures = {*raw, *raw["gpu"], *(f"first.{key}" for key in first)}
    assert set(card.gpu.found) == figures - {"device", "gpu", "found", "first.golden"}
    checked = json.loads((Path(__file__).parents[2] / "docs/gpu_check.json").read_text())
    findings = [finding["name"].lower() for finding in checked["findings"]]
    for text in card.gpu.found.values():
        kind, _, where = text.partition(": ")
        assert kind in ("measured", "assumed") and where
        if kind == "measured":
            page, _, finding = where.partition(", ")
            assert page == "docs/gpu_check.json"
            assert any(name.startswith(re.split("[:;,]", finding)[0].lower()) for name in findings), finding
