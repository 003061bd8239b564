import msgpack
import numpy as np
import pytest

from ekya.streams.ingest.frame import Truth
from ekya.streams.ingest.frame_transport import FrameHeader, MessageKind, pack_message, unpack_messages

BOXES = np.array([[1.5, 2, 30, 40], [0, 0, 1e4, np.nan]], np.float32)
TRUTH = Truth(BOXES, np.array([0, 5]), np.array([7, 1 << 40]))


def header(boxes, truth):
    return FrameHeader(
        index=3,
        t_us=1 << 40,
        released_ns=1 << 60,
        damaged=0,
        offset=4096,
        height=1080,
        width=1920,
        boxes=boxes,
        truth=truth,
    )


def same(one, other):
    return one is other or (one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True))


@pytest.mark.parametrize(
    ("boxes", "truth"),
    [(BOXES, TRUTH), (None, TRUTH), (BOXES[:0], None), (BOXES.astype(float)[:, ::1], None)],
)
def test_messages_in_any_chunks_are_unpacked_as_packed(boxes, truth):
    sent = [
        (MessageKind.OPENED, "24.0"),
        (MessageKind.FRAME, header(boxes, truth)),
        (MessageKind.NOTED, "a café"),
    ]
    data = b"".join(pack_message(*one) for one in sent)
    received = msgpack.Unpacker()
    got = []
    for start in range(0, len(data), 5):
        received.feed(data[start : start + 5])
        got += unpack_messages(received)
    assert [kind for kind, _ in got] == [kind for kind, _ in sent]
    assert (got[0][1], got[2][1]) == ("24.0", "a café")
    found = got[1][1]
    names = ("index", "t_us", "released_ns", "damaged", "offset", "height", "width")
    assert [getattr(found, name) for name in names] == [3, 1 << 40, 1 << 60, 0, 4096, 1080, 1920]
    assert same(found.boxes, None if boxes is None else boxes.astype(np.float32))
    assert (found.truth is None) == (truth is None)
    if truth is not None:
        for name in ("boxes", "classes", "tracks"):
            assert same(getattr(found.truth, name), getattr(truth, name))
            assert getattr(found.truth, name).flags.writeable
