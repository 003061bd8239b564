"""Tests of ONNX detectors of the DETR family: labels, boxes and scores, in pixels of the frame."""

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnx_networks import NAMES, SIDE, frame_size, write

from ekya.core.errors import UserError
from ekya.core.objects import iou_matrix
from ekya.models.golden.class_map import COCO_CATEGORIES, coco_names
from ekya.models.golden.golden_model import PROPOSAL_SCORE, open_detector
from ekya.models.golden.onnx_detector import stretched

IMAGE = np.zeros((40, 80, 3), np.uint8)
DOG, KITE = [0.125, 0.125, 0.375, 0.625], [0.5, 0.25, 0.75, 1.0]  # parts of the frame's width and height
IN_FRAME = [[10.0, 5.0, 30.0, 25.0], [40.0, 10.0, 60.0, 40.0]]


def answers(
    classes: list[int], boxes: list[list[float]], scores: list[float], kind: type[np.generic] = np.int64
) -> dict[str, np.ndarray]:
    return {
        "scores": np.array([scores], np.float32),
        "labels": np.array([classes], kind),
        "boxes": np.array([boxes], np.float32).reshape(1, -1, 4),
    }


def two() -> dict[str, np.ndarray]:
    return answers([2, 1], [KITE, DOG], [0.8, 0.9])


@pytest.mark.parametrize("order", [("labels", "boxes", "scores"), ("scores", "labels", "boxes")])
@pytest.mark.parametrize(
    ("taken", "kind", "rows", "sizes_kind"),
    [
        ((1, 3, SIDE, SIDE), TensorProto.FLOAT, 1, TensorProto.INT64),
        (("N", 3, SIDE, SIDE), TensorProto.FLOAT16, "N", TensorProto.INT64),
        ((1, 3, SIDE, SIDE), TensorProto.FLOAT, 1, TensorProto.INT32),
    ],
)
def test_detr_boxes_are_in_pixels_of_the_frame(
    order: tuple[str, ...],
    taken: tuple[object, ...],
    kind: int,
    rows: object,
    sizes_kind: int,
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "net.onnx",
        named={name: two()[name] for name in order},
        taken=taken,
        kind=kind,
        sizes=frame_size(shape=(rows, 2), elem_type=sizes_kind),
    )
    detector = open_detector("onnx", path, 0.5)
    found = detector.detect_objects(IMAGE)
    assert [detector.names[index] for index in found.classes] == ["dog", "kite"]
    np.testing.assert_allclose(found.boxes, IN_FRAME, atol=1e-4)
    np.testing.assert_allclose(found.scores, [0.9, 0.8], atol=1e-6)
    assert detector.operations_per_frame(IMAGE.shape) == 2 * 2 * 3 * SIDE * SIDE
    assert len(open_detector("onnx", path, 0.85).detect_objects(IMAGE).boxes) == 1


def test_detr_frames_are_stretched_to_the_input() -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    image[:20, :, 0] = 255  # blue, in OpenCV's order
    picture, *moved = stretched(image, 64, 64)
    assert moved == [(0.8, 1.6), (0.0, 0.0)]
    assert picture.shape == (3, 64, 64)
    assert (picture[2, :31] == 1.0).all()
    assert (picture[2, 33:] == 0.0).all()
    assert (picture[:2] == 0.0).all()


def test_detr_with_open_sides_gets_the_usual_ones(tmp_path: Path) -> None:
    taken = ("N", 3, "height", "width")
    path = write(tmp_path / "net.onnx", named=two(), taken=taken, sizes=frame_size())
    assert open_detector("onnx", path).operations_per_frame((1, 1, 3)) == 2 * 2 * 3 * 640 * 640


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32])
def test_detr_labels_may_have_any_type(kind: type[np.generic], tmp_path: Path) -> None:
    told = answers([2, 1], [KITE, DOG], [0.8, 0.9], kind)
    detector = open_detector("onnx", write(tmp_path / "net.onnx", named=told, sizes=frame_size()))
    assert detector.detect_objects(IMAGE).classes.tolist() == [1, 2]


def test_detr_query_has_one_class_and_copies_are_suppressed(tmp_path: Path) -> None:
    near, apart = [0.125, 0.125, 0.375, 0.6], [0.125, 0.125, 0.375, 0.4]  # IoU with the dog: 0.95, 0.55
    told = answers([2, 1, 1, 1, 2], [DOG, DOG, near, apart, near], [0.7, 0.9, 0.8, 0.75, 0.65])
    path = write(tmp_path / "net.onnx", named=told, sizes=frame_size())
    found = open_detector("onnx", path, 0.5).detect_objects(IMAGE)
    assert found.classes.tolist() == [1, 1], "both kites lie exactly where a dog is surer"
    np.testing.assert_allclose(found.scores, [0.9, 0.75])


def test_detr_categories_of_coco_are_told_by_their_numbers(tmp_path: Path) -> None:
    truck, brush, gap = (COCO_CATEGORIES.index(name) for name in ("truck", "toothbrush", "N/A"))
    at_first = answers([truck, brush], [KITE, DOG], [0.1, 0.2])
    later = answers([truck, gap, 0], [KITE, DOG, DOG], [0.8, 0.9, 0.9])
    path = write(
        tmp_path / "net.onnx", named=later, at_first=at_first, names=None, sizes=frame_size(shape=("N", 2))
    )
    detector = open_detector("onnx", path)
    found = detector.detect_objects(IMAGE)
    assert detector.names == coco_names()
    assert [detector.names[index] for index in found.classes] == ["truck"]


def test_detr_categories_of_coco_can_be_listed_beside_it(tmp_path: Path) -> None:
    told = answers([COCO_CATEGORIES.index("truck")], [KITE], [0.8])
    path = write(tmp_path / "net.onnx", named=told, names=None, sizes=frame_size())
    assert coco_names()[open_detector("onnx", path).detect_objects(IMAGE).classes[0]] == "boat", (
        "taken for an index"
    )
    (tmp_path / "net.names").write_text("\n".join(COCO_CATEGORIES))
    detector = open_detector("onnx", path)
    assert detector.names[detector.detect_objects(IMAGE).classes[0]] == "truck"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": frame_size(name="im_shape")}, r"im_shape.*orig_target_sizes \(1, 2\)"),
        ({"sizes": frame_size(shape=(1, 4))}, "one picture"),
        ({"sizes": frame_size(elem_type=TensorProto.FLOAT)}, "one picture"),
        ({"sizes": frame_size(shape=(4, 2))}, "one picture"),
        ({"named": {"output0": np.zeros((1, 9, 6), np.float32)}}, "takes orig_target_sizes"),
        ({"named": {**two(), "keypoints": np.zeros((1, 2, 17), np.float32)}}, "keypoints"),
        ({"named": {**two(), "labels": np.zeros((1, 3), np.int64)}}, r"labels \(1, 3\)"),
        ({"named": {**two(), "scores": np.zeros((1, 2, 3), np.float32)}}, r"scores \(1, 2, 3\)"),
        ({"named": answers([7], [DOG], [0.9])}, r"class number 7 where 3.*net\.names"),
        ({"named": answers([91], [DOG], [0.9]), "names": None}, r"class number 91 where 80.*net\.names"),
        ({"task": "segment"}, "'segment'"),
    ],
)
def test_detr_unreadable_file_is_refused(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", **{"named": two(), "sizes": frame_size(), "names": NAMES, **changes})
    with pytest.raises(UserError, match=rf"net\.onnx: .*{words}") as refused:
        open_detector("onnx", path)
    assert "named by the key 'weights'" in str(refused.value)
    assert "; " in str(refused.value), "with a remedy"


@pytest.fixture(scope="module")
def deim(data_dir: Path) -> Path:
    return data_dir / "weights" / "deimv2_hgnetv2_femto_coco.onnx"


def traffic(data_dir: Path) -> np.ndarray:
    capture = cv2.VideoCapture(str(data_dir / "videos" / "degirum_Traffic.mp4"))
    for _ in range(100):
        capture.grab()
    return capture.read()[1]


def test_deim_answers_what_onnxruntime_does(deim: Path, data_dir: Path) -> None:
    image = traffic(data_dir)
    height, width = image.shape[:2]
    picture = cv2.cvtColor(cv2.resize(image, (416, 416)), cv2.COLOR_BGR2RGB).astype(np.float32) / 255
    session = onnxruntime.InferenceSession(str(deim), providers=["CPUExecutionProvider"])
    feed = {
        "images": picture.transpose(2, 0, 1)[None],
        "orig_target_sizes": np.array([[width, height]], np.int64),
    }
    labels, boxes, scores = (of[0] for of in session.run(["labels", "boxes", "scores"], feed))
    kept: list[int] = []
    for row in np.flatnonzero(scores >= PROPOSAL_SCORE):
        overlap = iou_matrix(boxes[row : row + 1], boxes[kept])[0] if kept else np.zeros(0)
        same = labels[kept] == labels[row] if kept else np.zeros(0, bool)
        if not (overlap == 1).any() and not (same & (overlap > 0.7)).any():
            kept.append(int(row))
    found = open_detector("onnx", deim, PROPOSAL_SCORE).detect_objects(image)
    assert len(kept) >= 5
    assert found.classes.tolist() == labels[kept].tolist()
    np.testing.assert_allclose(found.scores, scores[kept], atol=1e-4)
    np.testing.assert_allclose(
        found.boxes, np.clip(boxes[kept], 0, [width, height, width, height]), atol=0.05
    )


def test_deim_takes_the_width_before_the_height(deim: Path, data_dir: Path) -> None:
    image = traffic(data_dir)
    other = open_detector("fastestdet", data_dir / "weights" / "FastestDet.onnx")
    known = other.detect_objects(image)
    found = open_detector("onnx", deim, PROPOSAL_SCORE).detect_objects(image)
    cars = known.boxes[known.classes == other.names.index("car")]
    assert len(cars) == 3
    assert (iou_matrix(cars, found.boxes).max(axis=1) > 0.6).all(), "if not, every IoU is below 0.01"


def test_deim_operations_are_counted(deim: Path) -> None:
    detector = open_detector("onnx", deim)
    assert detector.names == coco_names(), "of coco.names beside it"
    assert detector.operations_per_frame((352, 640, 3)) == pytest.approx(1.67e9, rel=0.01)
