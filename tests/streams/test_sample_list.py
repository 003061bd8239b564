from pathlib import Path

import cv2
import numpy as np
import pytest
from draw_samples import draw_sample_list
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.datasets.cityscapes import PAPER_CLASSES
from ekya.streams.datasets.sample_list import SAMPLE_LIST, SampleListSpec

NAMES = "idx,class,x0,y0,x1,y1\n"


@pytest.fixture
def folder(tmp_path):
    """Ten pictures 000000.jpg to 000009.jpg, whose brightness is 20 times their number."""
    (tmp_path / "north").mkdir()
    for number in range(10):
        path = tmp_path / "north" / f"{number:06d}.jpg"
        cv2.imwrite(str(path), np.full((40, 60, 3), 20 * number, np.uint8))
    return tmp_path


def shown(folder: Path, text: str, classes: tuple[str, ...] = PAPER_CLASSES, **keys: object):
    """Returns the number that brightness encodes, the time in seconds and the objects of each frame."""
    (folder / "north.csv").write_text(text)
    spec = SampleListSpec.model_validate(
        {"samples": folder / "north.csv", "frames": folder / "north", **keys}
    )
    return [
        (round(frame.image.mean() / 20), frame.t_us / 1e6, [classes[number] for number in truth.classes])
        for frame, truth in spec.open(classes).frames()
    ]


def test_sample_list_shows_only_listed_frames(folder):
    text = NAMES + "2,0,0,0,10,20\n2,1,5,5,30,30\n\n4,9,0,0,5,5\n7,4,1.5,2.5,90,90\n"
    assert shown(folder, text) == [(2, 0.0, ["person", "car"]), (4, 1.0, []), (7, 2.0, ["bicycle"])]


def test_sample_list_pictures_may_be_numbered_without_zeros(folder):
    for number in range(10):
        (folder / "north" / f"{number:06d}.jpg").rename(folder / "north" / f"{number + 2}.jpg")
    assert shown(folder, NAMES + "2,0,0,0,10,20\n11,1,5,5,30,30\n", ("person",))[1][0] == 9


@pytest.mark.parametrize(
    "text",
    [
        "1,0,0,0,10,20\n3,1,5,5,30,30\n",
        "0,000001.jpg,0,0,0,10,20\n1,000003.jpg,1,5,5,30,30\n",
        "idx,frame id,class,xmin,ymin,xmax,ymax,score\n0,1,0,0,0,10,20,.9\n1,3,1,5,5,30,30,.8\n",
        "y1,x1,class,frame,y0,x0\n20,10,person,1,0,0\n30,30,car,3,5,5\n",
        "\ufeffimgpath,class,x0,y0,x1,y1\r\n000001.jpg,0.0,0,0,10,20\r\n000003.jpg,1.0,5,5,30,30\r\n",
    ],
)
def test_sample_list_columns_are_usual_or_named(folder, text):
    assert shown(folder, text, classes=("car", "person")) == [(1, 0.0, ["person"]), (3, 1.0, ["car"])]


def test_sample_list_labels_name_its_numbers(folder):
    text = NAMES + "1,1,0,0,10,20\n1,3,5,5,30,30\n1,2,5,5,30,30\n"
    assert shown(folder, text, ("car", "person"), labels={1: "person", 3: "car"}, fps=5) == [
        (1, 0.0, ["person", "car"])
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("3,0,1,1,2", "5 columns where 6 are needed"),
        ("3,0,1,x,2,2", "'x' is no number"),
        ("3,0,1,nan,2,2", "'nan' is no number"),
        ("3,0,5,1,2,2", "the box 5, 1, 2, 2 has no area"),
        ("three,0,1,1,2,2", "'three' is no number"),
        ("3.5,0,1,1,2,2", "'3.5' is no whole number"),
        ("-3,0,1,1,2,2", "'-3' is no whole number"),
        ("3,,1,1,2,2", "no class is named"),
        ("3,1e3x,1,1,2,2", "'1e3x' is no number"),
    ],
)
def test_sample_list_wrong_line_is_named(folder, line, says):
    with pytest.raises(UserError) as caught:
        shown(folder, NAMES + "1,0,1,1,2,2\n2,0,1,1,2,2\n" + line + "\n4,0,1,1,2,2\n")
    assert f"{folder}/north.csv:4: {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is nothing in it"),
        ("1,2,3\n", "north.csv:1: 3 columns without names"),
        ("idx,class,class,x0,y0,x1,y1\n", "north.csv:1: the column 'class' stands there twice"),
        ("idx,class,x0,y0,x1\n", "north.csv:1: the first line has to name a frame"),
        (NAMES + "1,tram,1,1,2,2\n", "has no 'person'; remove it, or choose from tram"),
    ],
)
def test_sample_list_incomplete_list_is_refused(folder, text, says):
    with pytest.raises(UserError, match=says):
        shown(folder, text)


def test_sample_list_changed_bytes_are_read_or_user_error(folder):
    text = NAMES + "".join(f"{number},0,1.5,1,9,9\n" for number in range(4))
    rng = np.random.default_rng(5)
    for _ in range(120):
        data = bytearray(text.encode())
        for _ in range(int(rng.integers(1, 4))):
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (folder / "north.csv").write_bytes(data[: rng.integers(1, len(data) + 1)])
        try:
            source = SampleListSpec(samples=folder / "north.csv", frames=folder / "north").open(("person",))
            assert len(list(source.frames())) + source.damaged <= 8
        except UserError as error:
            assert f"{folder}/north" in str(error)


@pytest.mark.parametrize(("first", "shown_at"), [(1, [0, 2]), (0, [0, 2])])
def test_sample_list_frame_ids_count_from_1_unless_there_is_a_0(tmp_path, first, shown_at):
    draw_sample_list(tmp_path, "south", 8, video=True)
    lines = (f"{number + first},0,1,1,9,9\n" for number in shown_at)
    (tmp_path / "south.csv").write_text("frame id,class,x0,y0,x1,y1\n" + "".join(lines))
    spec = SampleListSpec(samples=tmp_path / "south.csv", video=tmp_path / "south.mp4")
    assert [frame.place for frame in spec.list_frames()[1]()] == shown_at


@pytest.mark.parametrize("factor", [0.01, 300], ids=["parts", "larger"])
def test_sample_list_of_boxes_outside_of_its_pictures_is_refused(folder, tmp_path, factor):
    box = ",".join(str(value * factor) for value in (2, 2, 20, 30))
    (folder / "north.csv").write_text(NAMES + "".join(f"{number},0,{box}\n" for number in range(9)))
    with pytest.raises(
        UserError, match="9 of 9 boxes lie outside of their pictures, or are smaller than a pixel"
    ):
        SAMPLE_LIST.examine(folder, "north", ("person",), tmp_path / "index", lambda objects: None)


def test_sample_list_missing_picture_is_counted_and_logged(folder, caplog):
    (folder / "north" / "000003.jpg").unlink()
    (folder / "north" / "000004.jpg").write_bytes(b"")
    text = NAMES + "".join(f"{number},0,1,1,9,9\n" for number in range(6))
    assert [brightness for brightness, _, _ in shown(folder, text)] == [0, 1, 2, 5]
    assert f"{folder}/north/000003.jpg: is missing" in caplog.text
    assert f"{folder}/north/000004.jpg: is empty" in caplog.text


def test_sample_list_video_frames_keep_their_times(tmp_path, caplog):
    draw_sample_list(tmp_path, "south", 8, video=True)
    lines = (f"{number},0,1,1,9,9\n" for number in (2, 4, 6, 90))
    (tmp_path / "south.csv").write_text(NAMES + "".join(lines))
    spec = SampleListSpec(samples=tmp_path / "south.csv", video=tmp_path / "south.mp4")
    source = spec.open(("person", "car"))
    assert [frame.t_us for frame, _ in source.frames()] == [0, 200_000, 400_000]
    assert source.fps == pytest.approx(5), "every second frame of ten a second"
    assert source.damaged == 1
    assert "south.mp4: frame 90 from 0 on is listed, and is damaged or behind the end" in caplog.text
    (tmp_path / "south.csv").write_text("imgpath,class,x0,y0,x1,y1\na.jpg,0,1,1,9,9\n")
    with pytest.raises(UserError, match="names its frames by path"):
        spec.open(("person", "car"))


def test_sample_list_spec_needs_frames_or_video(tmp_path):
    for keys in ({}, {"frames": tmp_path, "video": tmp_path / "a.mp4"}):
        with pytest.raises(ValidationError, match="and not both"):
            SampleListSpec(samples=tmp_path / "a.csv", **keys)


def test_sample_list_unnumbered_pictures_are_user_error(folder):
    for path in (folder / "north").iterdir():
        path.rename(path.with_stem("frame-" + "abcdefghij"[int(path.stem)]))
    with pytest.raises(UserError, match=r"no pictures whose names end in a number.*'frames'"):
        shown(folder, NAMES + "1,0,1,1,9,9\n")


def test_sample_list_examine_reads_unsorted_nested_lists(tmp_path):
    pictures = tmp_path / "leftImg8bit" / "train" / "ulm"
    pictures.mkdir(parents=True)
    for name in "ab":
        cv2.imwrite(str(pictures / f"{name}.png"), np.zeros((20, 20, 3), np.uint8))
    lists = tmp_path / "sample_lists" / "citywise"
    lists.mkdir(parents=True)
    (lists / "ulm_fine.csv").write_text(
        "0,train/ulm/b.png,1,0,0,9,9\n1,train/ulm/a.png,0,0,0,9,9\n2,train/ulm/c.png,0,0,0,9,9\n"
    )
    (tmp_path / "lost.csv").write_text("0,1,0,0,9,9\n")
    survey = SAMPLE_LIST.survey(tmp_path)
    assert survey.frames == {"ulm_fine": 3}
    assert [sentence.split(":")[0] for sentence in survey.missing] == [str(tmp_path / "lost")]
    index = tmp_path / "ulm.jsonl"
    found = SAMPLE_LIST.examine(tmp_path, "ulm_fine", ("person", "car"), index, lambda objects: None)
    assert (found.frames, found.objects) == (2, {"car": 1, "person": 1})
    source = SAMPLE_LIST.make_indexed_spec(tmp_path, "ulm_fine", index).open(("person", "car"))
    assert [truth.classes.tolist() for _, truth in source.frames()] == [[0], [1]]
