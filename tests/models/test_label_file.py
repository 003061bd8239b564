from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.detections import Detections, FramePlace
from ekya.models.golden.label_file import LabelHead, LabelTable, read_labels, resumed

NAMES = ("car", "bus, red", "person")
CAM = StreamId("cam-1")
HEAD = LabelHead(by="onnx", names=NAMES, finds=True)


def found(*rows: tuple[float, int, float]) -> Detections:
    """Returns boxes of 10 x 20 pixels that begin at x, with class and confidence."""
    boxes = np.array([[x, 0, x + 10, 20] for x, _, _ in rows], np.float32).reshape(-1, 4)
    return Detections(
        boxes, np.array([c for _, c, _ in rows], np.int64), np.array([s for _, _, s in rows], np.float32)
    )


def rows_of(detections: Detections | None) -> list[tuple[float, int, float]] | None:
    if detections is None:
        return None
    return list(
        zip(
            detections.boxes[:, 0].tolist(),
            detections.classes.tolist(),
            detections.scores.tolist(),
            strict=True,
        )
    )


boxes = st.tuples(st.integers(0, 50).map(float), st.integers(0, 2), st.sampled_from([0.0, 0.25, 1.0]))
frames = st.dictionaries(st.integers(0, 9), st.lists(boxes, max_size=3), max_size=5)


@pytest.mark.parametrize("name", ["labels.parquet", "labels.csv"])
@settings(max_examples=8, deadline=None)
@given(told=st.dictionaries(st.sampled_from(["a", "b-2"]), frames, max_size=2))
def test_label_file_round_trip_is_identical(
    name: str,
    told: dict[str, dict[int, list[tuple[float, int, float]]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("labels") / name
    table = LabelTable(HEAD)
    for stream, of in told.items():
        table.frames[StreamId(stream)] = {frame: found(*rows) for frame, rows in of.items()}
    table.save_table(path)
    read = read_labels(path)
    assert read.head == HEAD
    for stream in ("a", "b-2"):
        for frame in range(10):
            expected = told.get(stream, {}).get(frame)
            assert rows_of(read.labels_at_frame(FramePlace(StreamId(stream), frame))) == expected
    again = resumed(read)
    again.save_table(path)
    assert rows_of(read_labels(path).labels_at_frame(FramePlace(StreamId("a"), 3))) == told.get("a", {}).get(
        3
    )


def test_label_file_looped_stream_repeats_its_labels(tmp_path: Path) -> None:
    table = LabelTable(HEAD, {CAM: {frame: found((frame, 0, 1.0)) for frame in range(4)}})
    table.save_table(tmp_path / "part.parquet")
    assert read_labels(tmp_path / "part.parquet").labels_at_frame(FramePlace(CAM, 5)) is None, (
        "nobody knows where it ends"
    )
    table.finish_stream(CAM, 4)
    table.save_table(tmp_path / "all.parquet")
    assert rows_of(read_labels(tmp_path / "all.parquet").labels_at_frame(FramePlace(CAM, 5))) == [
        (1.0, 0, 1.0)
    ]


def test_label_file_reads_requested_streams_only(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    LabelTable(HEAD, {CAM: {0: found()}, StreamId("b"): {0: found((1, 1, 1.0))}}).save_table(path)
    assert set(read_labels(path, [CAM]).streams) == {CAM}
    assert read_labels(path, []).streams == {}


def test_label_file_by_hand_needs_no_head(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(
        "frame,class,stream,x0,y0,x1,y1,confidence,remark\n3,NA,cam-1,1,2,3,4,1,mine\n0,,cam-1,,,,,,\n"
        "3,bus,cam-1,5,6,7,8,0.5,\n",
        encoding="utf-8",
    )
    read = read_labels(path)
    assert (read.head.by, read.head.names, read.head.finds) == ("hand", ("NA", "bus"), None)
    seen = read.labels_at_frame(FramePlace(CAM, 3))
    assert seen is not None
    assert seen.boxes.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert seen.classes.tolist() == [0, 1], "NA is a class like any other"
    assert rows_of(read.labels_at_frame(FramePlace(CAM, 0))) == []
    assert read.labels_at_frame(FramePlace(CAM, 1)) is None


CSV = "stream,frame,x0,y0,x1,y1,class,confidence\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no file of labels"),
        ("a,b\n1,2\n", "column 'stream'"),
        (CSV.replace("x0", "x0,x0"), "the column 'x0' is there twice"),
        (CSV + "c,x,1,2,3,4,car,1\n", "no file of labels"),
        (CSV + "c,-1,1,2,3,4,car,1\n", "frame -1"),
        (CSV + "c,1,5,2,3,4,car,1\n", "frame 1 has x1 below x0.*: corners, not width and height"),
        (CSV + "c,1,1,2,3,4,car,7\n", "frame 1 has a confidence outside of 0 to 1"),
        (CSV + "c,1,1,2,3,4,car,\n", "frame 1 has a confidence .*, or none: 1 is by hand"),
        (CSV + "c,1,1,2,nan,4,car,1\n", "frame 1 has a box without all of its corners"),
        (CSV + "c,1,1,2,3,4,car,1\nc,2,1,2,3,4, Car,1\n", "' Car' and 'car' differ in case or spaces"),
        (CSV + "c,1,,2,3,4,car,1\n", "frame 1 has a box"),
        (CSV + "c,1,,2,3,4,,1\n", "frame 1 has a box without a class"),
        (CSV + ",1,1,2,3,4,car,1\n", "no stream or no frame"),
        ('# {"format": 1, "names": ["bus"]}\n' + CSV + "c,1,1,2,3,4,car,1\n", "'car' is none"),
        ('# {"format": 9}\n' + CSV, "format is 9"),
        ("# nonsense\n" + CSV, "no file of labels"),
        (CSV + "\xff\xfe,1,1,2,3,4,car,1\n", "no file of labels"),
    ],
)
def test_label_file_bad_csv_is_named_with_the_mistake(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=rf"labels\.csv: .*{words}"):
        read_labels(path)


def test_label_file_bad_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    with pytest.raises(UserError, match=r"labels\.parquet: no such file"):
        read_labels(path)
    LabelTable(HEAD, {CAM: {0: found((1, 1, 1.0))}}).save_table(path)
    whole = path.read_bytes()
    for cut in (b"", whole[:50], whole[:-20]):
        path.write_bytes(cut)
        with pytest.raises(UserError, match=r"labels\.parquet: .*ekya golden label"):
            read_labels(path)
    pq.write_table(pa.table({"stream": ["a"]}), path)
    with pytest.raises(UserError, match="column 'frame'"):
        read_labels(path)
