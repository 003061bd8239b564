import json
import logging
from pathlib import Path

import cv2
import numpy as np
import pytest
from draw_samples import draw_cityscapes
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.datasets.cityscapes import CITYSCAPES, PAPER_CLASSES, CityscapesSpec


def five_pictures(root: Path) -> None:
    draw_cityscapes(root, {"aachen": 5})


@pytest.fixture
def root(tmp_path, copied):
    """City with five pictures and their outlines."""
    copied(five_pictures, tmp_path)
    return tmp_path


def picture(root: Path, number: int) -> Path:
    return root / f"leftImg8bit/train/aachen/aachen_{number:06d}_000019_leftImg8bit.png"


def outlines(root: Path, number: int) -> Path:
    return root / f"gtFine/train/aachen/aachen_{number:06d}_000019_gtFine_polygons.json"


def box(label: str, x0: float, y0: float, x1: float, y1: float, **more: object) -> dict[str, object]:
    return {"label": label, "polygon": [[x0, y0], [x1, y0], [x1, y1], [x0, y1]], **more}


def write(root: Path, number: int, *objects: dict[str, object]) -> None:
    content = {"imgHeight": 1024, "imgWidth": 2048, "objects": list(objects)}
    outlines(root, number).write_text(json.dumps(content))


def opened(root: Path, **keys: object):
    return CityscapesSpec(root=root, city="aachen", **keys).open(PAPER_CLASSES)


def times_shown(source) -> list[float]:
    return [round(frame.t_us / 1e6, 6) for frame, _ in source.frames()]


def test_cityscapes_shows_only_single_objects_of_the_fleet(root):
    write(
        root,
        0,
        box("car", 0, 0, 512, 256),
        box("cargroup", 0, 0, 512, 256),
        box("rider", 100, 100, 300, 300),
        box("persongroup", 0, 0, 512, 256),
        box("bicycle", 512, 256, 1024, 512, deleted=1),
        box("motorcycle", 1024, 512, 3000, 2000),
        box("person", 5, 5, 54, 400),
        {"label": "bus", "polygon": [[600, 100], [700, 150], [650, 300]]},
    )
    frame, truth = next(opened(root).frames())
    assert [PAPER_CLASSES[number] for number in truth.classes] == ["car", "motorcycle", "bus"]
    height, width = frame.image.shape[:2]
    assert (width, height) == (128, 64), "boxes are scaled to the picture, whatever size was labelled"
    expected = np.array([[0, 0, 512, 256], [1024, 512, 2048, 1024], [600, 100, 700, 300]]) / 16
    np.testing.assert_allclose(truth.boxes, expected, atol=1e-4)
    assert len(next(opened(root, min_side=40).frames())[1].classes) == 4, "the person is 49 pixels wide"


def test_cityscapes_two_splits_are_in_chronological_order(tmp_path):
    draw_cityscapes(tmp_path / "one", {"hamburg": 1})
    for number, (split, stem) in enumerate(
        [
            ("val", "hamburg_000001_000002"),
            ("train", "hamburg_000000_100000"),
            ("train", "hamburg_000000_000999"),
        ]
    ):
        for top in ("leftImg8bit", "gtFine"):
            (tmp_path / top / split / "hamburg").mkdir(parents=True, exist_ok=True)
        path = tmp_path / f"leftImg8bit/{split}/hamburg/{stem}_leftImg8bit.png"
        cv2.imwrite(str(path), np.full((32, 64, 3), 10 * number, np.uint8))
        (tmp_path / f"gtFine/{split}/hamburg/{stem}_gtFine_polygons.json").write_text(
            json.dumps({"imgHeight": 1024, "imgWidth": 2048, "objects": []})
        )
    source = CityscapesSpec(root=tmp_path, city="hamburg").open(PAPER_CLASSES)
    assert [int(frame.image[0, 0, 0]) for frame, _ in source.frames()] == [20, 10, 0]


def test_cityscapes_without_outlines_reads_instance_map(root):
    for number in range(5):
        outlines(root, number).unlink()
    values = np.full((1024, 2048), 26, np.uint16)  # a group of cars has no instance
    values[100:300, 200:400] = 26_000
    values[500:700, 1000:1200] = 24_003
    values[900:1000, 0:500] = 25_000
    cv2.imwrite(str(outlines(root, 2)).replace("polygons.json", "instanceIds.png"), values)
    source = opened(root)
    [(frame, truth)] = list(source.frames())
    assert [PAPER_CLASSES[number] for number in truth.classes] == ["person", "car"]
    np.testing.assert_allclose(truth.boxes, np.array([[1000, 500, 1200, 700], [200, 100, 400, 300]]) / 16)
    assert (frame.t_us, source.damaged) == (2 * 1_800_000, 4)


HEAD = b'{"imgHeight": 1024, "imgWidth": 2048, "objects": '
BROKEN_LABELS = (
    b"",
    b"{",
    b"[]",
    b"[" * 100_000,
    b"\xff\xfe\x00",
    b'{"imgHeight": 1024, "imgWidth": 2048}',
    b'{"imgHeight": -1, "imgWidth": 2048, "objects": []}',
    HEAD + b'[{"label": "car"}]}',
    HEAD + b'[{"label": "car", "polygon": []}]}',
    HEAD + b'[{"label": "car", "polygon": [[0], [1], [2]]}]}',
    HEAD + b'[{"label": "car", "polygon": [[NaN, 1], [1, 2], [2, 3]]}]}',
    HEAD + b'[{"label": "car", "polygon": [[1e999, 1], [1, 2], [2, 3]]}]}',
    HEAD + b'["car"]}',
    HEAD + b"7}",
)


@pytest.mark.parametrize("content", BROKEN_LABELS)
def test_cityscapes_unreadable_labels_drop_frame_and_are_logged(root, content, caplog):
    outlines(root, 1).write_bytes(content)
    source = opened(root)
    assert times_shown(source) == [0.0, 3.6, 5.4, 7.2], "time goes on over the frame that is left out"
    assert source.damaged == 1
    assert times_shown(source) and source.damaged == 1, "it is counted anew in each pass"
    assert [str(outlines(root, 1)) in message for message in caplog.messages] == [True], "and named once"


def test_cityscapes_changed_labels_are_read_or_logged(root, caplog):
    data = outlines(root, 0).read_bytes()
    rng = np.random.default_rng(5)
    for _ in range(150):
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        outlines(root, 0).write_bytes(changed[: rng.integers(1, 4 * len(data))])
        caplog.clear()
        source = opened(root)
        frames = source.frames()
        frame, truth = next(frames)
        frames.close()
        assert source.damaged == len(caplog.messages) <= 1
        assert all(str(outlines(root, 0)) in message for message in caplog.messages)
        height, width = frame.image.shape[:2]
        assert np.all((truth.boxes >= 0) & (truth.boxes <= [width, height, width, height]))


def test_cityscapes_unreadable_picture_drops_frame_and_is_logged(root, caplog):
    whole = picture(root, 0).read_bytes()
    picture(root, 0).write_bytes(whole[: len(whole) // 2])
    picture(root, 1).write_bytes(whole[:200] + bytes([whole[200] ^ 4]) + whole[201:])
    picture(root, 2).unlink()
    picture(root, 3).write_bytes(b"not a picture at all")
    source = opened(root)
    assert times_shown(source) == [7.2]
    assert source.damaged == 4
    for number, why in enumerate(("is cut off", "a checksum is wrong", "is missing", "does not decode")):
        assert str(picture(root, number)) in caplog.messages[number]
        assert why in caplog.messages[number]


def test_cityscapes_picture_without_labels_is_left_out(root, caplog):
    outlines(root, 4).unlink()
    source = opened(root)
    assert len(times_shown(source)) == 4
    assert "_polygons.json: is missing, and so is aachen_000004_000019_gtFine_instanceIds.png" in caplog.text


def test_cityscapes_index_keeps_known_damage(root, tmp_path, caplog):
    outlines(root, 1).write_bytes(b"{")
    picture(root, 3).unlink()
    index = tmp_path / "aachen.jsonl"
    with caplog.at_level(logging.ERROR):
        found = CITYSCAPES.examine(root, "aachen", PAPER_CLASSES, index, lambda objects: None)
    assert (found.frames, len(found.problems)) == (3, 2)
    assert str(outlines(root, 1)) in found.problems[0]
    assert str(picture(root, 3)) in found.problems[1]
    picture(root, 2).unlink()
    source = opened(root, index=index)
    assert times_shown(source) == [0.0, 7.2], "what went after the check is missed as well"
    assert source.damaged == 3


def test_cityscapes_missing_city_or_class_is_user_error(root):
    with pytest.raises(UserError, match=r"no city 'bonn' in train, val, named by the key 'city'"):
        CityscapesSpec(root=root, city="bonn").open(PAPER_CLASSES)
    with pytest.raises(UserError, match=r"Cityscapes has no 'tram'; remove it, or choose from person, rider"):
        CityscapesSpec(root=root, city="aachen").open(("car", "tram"))
    for keys in ({"city": "../x"}, {"city": "a", "splits": []}, {"city": "a", "splits": ["val", "val"]}):
        with pytest.raises(ValidationError):
            CityscapesSpec(root=root, **keys)


def test_cityscapes_survey_lists_missing_splits(root):
    survey = CITYSCAPES.survey(root)
    assert survey.frames == {"aachen": 5}
    assert [sentence.split(":")[0] for sentence in survey.missing] == [
        f"{root}/leftImg8bit/val",
        f"{root}/gtFine/val",
    ]
