import numpy as np
import pytest

from ekya.core.errors import UserError
from ekya.streams.datasets.labelled import LabelledFrame, LabelledObject, LabelledSource, Shown
from ekya.streams.datasets.labelled_index import IndexHead, read_frames, read_head, write_index

HEAD = IndexHead(dataset="cityscapes", stream="ulm", known=("car", "bus"))
FRAMES = (
    LabelledFrame(
        "a b.png", (LabelledObject("car", 0.5, 1, 2, 3), LabelledObject("bus", 4, 5, 6, 7)), (20, 10)
    ),
    LabelledFrame(7, ()),
    LabelledFrame("ü.png", problem="ü.png: is missing"),
)


def shown():
    for number, frame in enumerate(FRAMES):
        image = None if frame.problem else np.zeros((10, 20, 3), np.uint8)
        yield Shown(frame, number * 500_000, image)


@pytest.fixture
def index(tmp_path):
    path = tmp_path / "ulm.jsonl"
    source = LabelledSource(shown, 2.0, {"bus": 0}, 640)
    found = write_index(path, HEAD, source, ("bus",), lambda: None)
    assert (found.frames, found.duration_s) == (2, 1.5)
    assert (found.objects, found.problems) == ({"bus": 1}, ("ü.png: is missing",))
    return path


def test_what_was_written_is_read_back(index):
    assert read_head(index, "cityscapes") == HEAD
    assert tuple(read_frames(index)) == FRAMES
    with pytest.raises(UserError, match="is no index of sample-list, as this version writes it"):
        read_head(index, "sample-list")


def test_wherever_it_is_cut_off_it_is_told(index):
    data = index.read_bytes()
    for length in range(data.index(b"\n") + 1, len(data) - 1):
        index.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"ulm\.jsonl(:\d)?: .*ekya prepare"):
            list(read_frames(index))


def test_whatever_is_changed_in_it_is_read_or_told(index):
    data = index.read_bytes()
    for at in range(len(data)):
        for bit in (1, 4, 64):
            index.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                read_head(index, "cityscapes")
                list(read_frames(index))
            except UserError as error:
                assert "ulm.jsonl" in str(error)
