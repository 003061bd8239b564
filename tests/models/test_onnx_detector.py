"""Tests of ONNX detectors of every layout, which are built here to return given answers."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import TensorProto
from onnx_networks import CELLS, SIDE, write

from ekya.core.errors import UserError
from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.onnx_detector import letterboxed

IMAGE = np.zeros((40, 80, 3), np.uint8)  # fitted: 64 x 32, from y = 16 on, scaled by 0.8
FOUND = [[10.0, 5.0, 30.0, 25.0], [50.0, 10.0, 75.0, 35.0]]
IN_INPUT = np.array([[8.0, 20.0, 24.0, 36.0], [40.0, 24.0, 60.0, 44.0]], np.float32)


def centres() -> np.ndarray:
    return np.concatenate(
        [(IN_INPUT[:, :2] + IN_INPUT[:, 2:]) / 2, IN_INPUT[:, 2:] - IN_INPUT[:, :2]], axis=1
    )


def rows(count: int, objectness: bool) -> np.ndarray:
    """Returns rows (count, 4 or 5 + 3): one dog, and one kite twice, the less sure last; others are empty."""
    told = np.zeros((count, 8 if objectness else 7), np.float32)
    told[[3, 5, 6], :4] = centres()[[0, 1, 1]]
    if objectness:
        told[[3, 5, 6], 4] = 0.9
    told[3, -2] = 1.0 if objectness else 0.9
    told[[5, 6], -1] = [0.8, 0.7]
    return told


def suppressed(columns: list[int]) -> np.ndarray:
    told = np.concatenate(
        [np.zeros((2, 1)), IN_INPUT, np.array([[0.9, 1], [0.8, 2]]), np.zeros((2, 1))], axis=1
    )
    return told[:, columns]


LAYOUTS = {
    "a score a class": (rows(CELLS, False).T[None], (0.9, 0.8)),
    "objectness": (rows(3 * CELLS, True)[None], (0.9, 0.72)),
    "suppressed": (suppressed([1, 2, 3, 4, 5, 6])[None], (0.9, 0.8)),
    "suppressed, of pictures": (suppressed([0, 1, 2, 3, 4, 6, 5]), (0.9, 0.8)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("taken", "kind"),
    [((1, 3, SIDE, SIDE), TensorProto.FLOAT), (("batch", 3, SIDE, SIDE), TensorProto.FLOAT16)],
)
def test_onnx_detector_recognises_every_layout(
    layout: str, taken: tuple[object, ...], kind: int, tmp_path: Path
) -> None:
    answer, scores = LAYOUTS[layout]
    detector = open_detector("onnx", write(tmp_path / "net.onnx", answer, taken=taken, kind=kind), 0.5)
    found = detector.detect_objects(IMAGE)
    assert detector.names == ("cat", "dog", "kite")
    assert [detector.names[index] for index in found.classes] == ["dog", "kite"]
    np.testing.assert_allclose(found.boxes, FOUND, atol=1e-4)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert detector.operations_per_frame(IMAGE.shape) == 2 * 2 * 3 * SIDE * SIDE
    assert len(open_detector("onnx", tmp_path / "net.onnx", 0.95).detect_objects(IMAGE).boxes) == 0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_onnx_detector_finds_objects_among_broken_rows(layout: str, odd: float, tmp_path: Path) -> None:
    answer, scores = LAYOUTS[layout]
    if layout.startswith("suppressed"):
        broken = np.concatenate([np.full_like(answer, odd), answer], axis=-2)
    else:
        broken = np.where(
            answer.any(axis=1 if layout == "a score a class" else 2, keepdims=True), answer, odd
        )
    found = open_detector("onnx", write(tmp_path / "net.onnx", broken), 0.5).detect_objects(IMAGE)
    np.testing.assert_allclose(found.boxes, FOUND, atol=1e-4)
    np.testing.assert_allclose(found.scores, scores, atol=1e-6)


def test_onnx_detector_finds_every_object_of_a_crowd(tmp_path: Path) -> None:
    corners = np.stack(np.meshgrid(np.arange(0, 64, 8), np.arange(16, 48, 4)), axis=2).reshape(-1, 1, 2)
    nudged = corners + np.linspace(0.0, 0.1, 12).reshape(1, -1, 1)  # 64 objects in 12 boxes each
    boxes = np.concatenate([nudged, nudged + np.array([7, 3])], axis=2).reshape(-1, 4)
    answer = np.concatenate([boxes, np.full((len(boxes), 1), 0.9), np.ones((len(boxes), 1))], axis=1)
    found = open_detector("onnx", write(tmp_path / "net.onnx", answer[None])).detect_objects(IMAGE)
    assert len(found.boxes) == 64


def test_onnx_detector_letterboxes_pictures() -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, :, 0] = 255  # blue, in OpenCV's order
    picture, (scale, _), (left, top) = letterboxed(image, 64, 64)
    assert (scale, left, top) == (0.8, 0, 16)
    assert picture.shape == (3, 64, 64)
    assert (picture[2, 16:48] == 1.0).all()
    assert (picture[0, 16:48] == 0.0).all()
    np.testing.assert_allclose(picture[:, :16], 114 / 255, atol=1e-6)


def test_onnx_detector_with_open_size_gets_the_usual_one(tmp_path: Path) -> None:
    cells = 80 * 80 + 40 * 40 + 20 * 20
    path = write(tmp_path / "net.onnx", np.zeros((1, 7, cells)), taken=(1, 3, "height", "width"))
    assert open_detector("onnx", path).operations_per_frame((1, 1, 3)) == 2 * 2 * 3 * 640 * 640


@pytest.mark.parametrize(
    ("answers", "said", "words"),
    [
        ([np.zeros((1, CELLS, 8))], {}, "YOLOX"),
        ([np.zeros((1, 6, CELLS))], {}, "3 classes"),
        ([np.zeros((1, 3, 8, 8, 8))], {}, "none of the layouts"),
        ([np.zeros((1, 7, CELLS)), np.zeros((1, 32, 16, 16))], {}, "2 answers"),
        ([np.zeros((1, 7, CELLS))], {"task": "segment"}, "'segment'"),
        ([np.zeros((1, 7, CELLS))], {"names": "{0: 'cat', "}, "'names'"),
        ([np.zeros((1, 7, CELLS))], {"names": "7"}, "'names'"),
        ([np.zeros((1, 7, CELLS))], {"names": None}, r"80 classes.*net\.names"),
        ([np.zeros((1, 7, CELLS))], {"taken": (1, SIDE, SIDE, 4)}, "one picture"),
        ([np.zeros((1, 7, CELLS))], {"taken": (4, 3, SIDE, SIDE)}, "one picture"),
        ([np.zeros((1, 7, CELLS))], {"kind": TensorProto.INT8}, "one picture"),
    ],
)
def test_onnx_detector_unreadable_file_is_refused(
    answers: list[np.ndarray], said: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "net.onnx", *answers, **said)
    with pytest.raises(UserError, match=rf"net\.onnx: .*{words}") as refused:
        open_detector("onnx", path)
    assert ";" in str(refused.value), "with a remedy"


def test_onnx_detector_without_names_reads_those_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", LAYOUTS["a score a class"][0], names=None)
    (tmp_path / "net.names").write_text("cat\ndog\nkite\n")
    assert open_detector("onnx", path).names == ("cat", "dog", "kite")


def test_onnx_detector_recognises_fastestdet(data_dir: Path) -> None:
    path = data_dir / "weights" / "FastestDet.onnx"
    image = cv2.VideoCapture(str(data_dir / "videos" / "ahmetozlu_input_video.mp4")).read()[1]
    known, named = open_detector("onnx", path), open_detector("fastestdet", path)
    assert (known.detect_objects(image).boxes == named.detect_objects(image).boxes).all()
    assert len(known.detect_objects(image).boxes) > 0
