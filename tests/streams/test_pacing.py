"""Tests of when frames are sent, on a virtual clock."""

import queue
from types import SimpleNamespace

import numpy as np
import pytest

from ekya.streams.ingest.frame import Frame, Sight, Silence
from ekya.streams.ingest.frame_transport import FrameHeader, MessageKind
from ekya.streams.ingest.playing import Lost, PlayConfig, PlayedSpec
from ekya.streams.ingest.process_child import FrameSender
from ekya.streams.synthetic import KINDS, CitySpec

BEGAN_NS = 5_000_000_000_000
IMAGE = np.zeros((4, 4, 3), np.uint8)


class Outbox:
    """Outbox on a virtual clock that notes when it is given which message."""

    def __init__(self, now_ns=BEGAN_NS):
        self.now_ns = now_ns
        self.sent = []

    def wait_until(self, due_ns):
        self.now_ns = max(self.now_ns, due_ns)

    def put(self, kind, body=""):
        self.sent.append((self.now_ns, kind, body))

    def empty(self):
        pass

    def at_us(self, kind):
        """Returns the stream times at which messages of a kind were given."""
        return [(now_ns - BEGAN_NS) // 1000 for now_ns, given, _ in self.sent if given is kind]

    def frames(self):
        return [body for *_, body in self.sent if isinstance(body, FrameHeader)]


class Live:
    """Live source of what it is given; functions among it are called."""

    fps = 10.0

    def __init__(self, *seen):
        self.seen = seen

    def watch_pictures(self):
        for one in self.seen:
            if callable(one):
                one()
            else:
                yield one


def send(outbox, source, requests, from_index=0, from_us=0):
    begin = {"started_monotonic_ns": BEGAN_NS, "from_index": from_index, "only": None, "from_us": from_us}
    if not isinstance(source, Live):
        requests.put(begin)
    slots = SimpleNamespace(write_frame=lambda _frame: 0)
    assert FrameSender(outbox, slots, requests, lambda: outbox.now_ns).send_frames(source) == 0
    return outbox.frames()


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def requests():
    return queue.SimpleQueue()


def paced(outbox, *times_us, takes_us=0):
    def frames():
        for index, t_us in enumerate(times_us):
            outbox.now_ns += takes_us * 1000
            yield Frame(index, t_us, IMAGE, None), None

    return SimpleNamespace(fps=100.0, damaged=0, frames=frames)


def test_paced_frames_are_sent_at_their_time(outbox, requests):
    times_us = (0, 10_000, 20_000, 500_000)
    sent = send(outbox, paced(outbox, *times_us), requests)
    assert [(one.index, one.t_us) for one in sent] == list(enumerate(times_us))
    assert [(one.released_ns - BEGAN_NS) // 1000 for one in sent] == list(times_us)


def test_paced_frames_that_are_read_too_slowly_are_sent_at_once(outbox, requests):
    sent = send(outbox, paced(outbox, 0, 10_000, 20_000, takes_us=15_000), requests)
    assert [(one.released_ns - BEGAN_NS) // 1000 for one in sent] == [15_000, 30_000, 45_000]


def test_paced_frames_from_an_index_on_keep_their_time(outbox, requests):
    sent = send(outbox, paced(outbox, 0, 10_000, 20_000), requests, from_index=1)
    assert [(one.index, one.released_ns) for one in sent] == [
        (1, BEGAN_NS + 10_000_000),
        (2, BEGAN_NS + 20_000_000),
    ]


def test_paced_frames_from_a_time_on_are_found_by_it_not_by_a_rate(outbox, requests):
    sent = send(outbox, paced(outbox, 0, 10_000, 900_000, 910_000), requests, from_us=500_000)
    assert [(one.index, one.t_us) for one in sent] == [(2, 900_000), (3, 910_000)]


def test_scripted_loss_is_told_when_it_begins_and_ends(outbox, requests):
    plain = CitySpec(seed=3, fps=10, duration_s=2.0, width=64, height=48)
    script = (Lost(at_s=0.5, for_s=0.6),)
    source = PlayedSpec(source=plain, play=PlayConfig(script=script)).open(KINDS)
    send(outbox, source, requests)
    assert outbox.at_us(MessageKind.LOST) == [500_000]
    assert outbox.at_us(MessageKind.BACK) == [1_100_000]
    assert not [t_us for t_us in outbox.at_us(MessageKind.FRAME) if 500_000 <= t_us < 1_100_000]


def at(ms):
    return Sight(BEGAN_NS + ms * 1_000_000, IMAGE)


def test_live_frames_before_the_run_are_dropped(outbox, requests):
    def begin():
        requests.put({"started_monotonic_ns": BEGAN_NS, "from_index": 7})

    sent = send(outbox, Live(at(-900), at(-800), begin, at(-200), at(-1), at(30), at(30), at(90)), requests)
    assert [(one.index, one.t_us) for one in sent] == [(7, 30_000), (8, 30_001), (9, 90_000)]


def test_live_silence_is_told_once_until_the_next_frame(outbox, requests):
    requests.put({"started_monotonic_ns": BEGAN_NS, "from_index": 0})
    silences = [Silence("no frame"), Silence("no connection")]
    sent = send(outbox, Live(at(0), *silences, at(500), Silence("again"), at(900)), requests)
    assert [one.index for one in sent] == [0, 1, 2]
    told = [(kind, body) for _, kind, body in outbox.sent if kind is not MessageKind.FRAME]
    back = (MessageKind.BACK, "")
    assert told == [(MessageKind.LOST, "no frame"), back, (MessageKind.LOST, "again"), back]
