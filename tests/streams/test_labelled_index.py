import numpy as np
import pytest

from ekya.core.errors import UserError
from ekya.streams.datasets.labelled import LabelledFrame, LabelledObject, LabelledSource, ShownFrame
from ekya.streams.datasets.labelled_index import (
    IndexHead,
    LabelledSpec,
    examine_labelled,
    read_frames,
    read_head,
)
from ekya.streams.ingest.frame import InterruptedSource

FRAMES = (
    LabelledFrame(
        "a b.png", (LabelledObject("car", 0.5, 1, 2, 3), LabelledObject("bus", 4, 5, 6, 7)), (20, 10)
    ),
    LabelledFrame(7, ()),
    LabelledFrame("ü.png", problem="ü.png: is missing"),
)


class Spec(LabelledSpec):
    """Fake that shows every frame, with its problem if it has one."""

    dataset = "cityscapes"

    def in_words(self):
        return "it"

    def list_frames(self):
        return ("car", "bus"), lambda: iter(FRAMES)

    def make_source(self, frames, class_of):
        def shown():
            for number, frame in enumerate(frames()):
                image = None if frame.problem else np.zeros((10, 20, 3), np.uint8)
                yield ShownFrame(frame, number * 500_000, image)

        return LabelledSource(shown, 2.0, class_of, 640)


@pytest.fixture
def index(tmp_path):
    path = tmp_path / "ulm.jsonl"
    found = examine_labelled(
        lambda root, stream: Spec(),
        lambda root: ("car", "bus"),
        tmp_path,
        "ulm",
        ("bus",),
        path,
        lambda objects: None,
    )
    assert (found.frames, found.duration_s) == (2, 1.5)
    assert (found.objects, found.problems) == ({"bus": 1}, ("ü.png: is missing",))
    return path


def test_labelled_index_is_read_back_as_written(index):
    assert read_head(index, "cityscapes") == IndexHead(
        dataset="cityscapes", stream="ulm", known=("car", "bus")
    )
    assert tuple(read_frames(index)) == FRAMES
    with pytest.raises(UserError, match="is no index of sample-list, as this version writes it"):
        read_head(index, "sample-list")


def test_labelled_index_cut_anywhere_is_user_error(index):
    data = index.read_bytes()
    for length in range(data.index(b"\n") + 1, len(data) - 1):
        index.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"ulm\.jsonl(:\d)?: .*ekya prepare"):
            list(read_frames(index))


def test_labelled_index_changed_bit_is_read_or_user_error(index):
    data = index.read_bytes()
    for at in range(len(data)):
        for bit in (1, 4, 64):
            index.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                read_head(index, "cityscapes")
                list(read_frames(index))
            except UserError as error:
                assert "ulm.jsonl" in str(error)


def test_labelled_source_announces_no_outages():
    """A source with a method ``shown`` is taken for one that announces its outages."""
    assert not isinstance(LabelledSource(lambda: iter(()), 2.0, {}, 640), InterruptedSource)
