from pathlib import Path

import numpy as np
import pytest

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.detections import Detections, FramePlace, Question
from ekya.models.golden.golden_from_detections import UNSURE, LabelFileProposer
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.label_file import LabelHead, LabelTable, read_labels
from ekya.models.golden.spec import GoldenSpec
from ekya.pipeline.discover_classes import classes_in
from ekya.streams.ingest.frame import Frame

CAM = StreamId("cam-1")
NAMES = ("person", "car", "kite")
CAR, KITE, PERSON, HALF = [0, 0, 40, 40], [100, 0, 140, 40], [0, 50, 20, 90], [60, 50, 90, 90]
BOXES = np.array([CAR, KITE, PERSON, HALF], np.float32)
IMAGE = np.zeros((100, 200, 3), np.uint8)


def written(path: Path, finds: bool) -> GoldenSpec:
    found = Detections(BOXES, np.array([1, 2, 0, 1]), np.array([0.9, 0.9, 0.7, 0.5], np.float32))
    nothing = Detections(BOXES[:0], np.zeros(0, np.int64), np.zeros(0, np.float32))
    LabelTable(LabelHead(by="x", names=NAMES, finds=finds), {CAM: {5: found, 6: nothing}}).save_table(path)
    return GoldenSpec(model="file", weights=path)


def asked(frame: int, boxes: np.ndarray = BOXES) -> Question:
    return Question(boxes, IMAGE, None, FramePlace(CAM, frame))


def test_label_file_model_of_detections_labels_as_the_detector(tmp_path: Path) -> None:
    golden = open_golden(written(tmp_path / "labels.parquet", finds=True), ("car", "person", "background"))
    labels = golden.label_boxes([asked(5), asked(6), asked(7), asked(5, BOXES[:0])])
    assert golden.background == 2
    assert [of.tolist() for of in labels] == [[0, 2, 1, UNSURE], [2] * 4, [UNSURE] * 4, []]
    assert golden.operations([asked(5)]) == 0
    found = golden.find_objects(IMAGE, FramePlace(CAM, 5))
    assert (found.boxes.tolist(), found.classes.tolist()) == ([CAR, PERSON], [0, 1])
    assert golden.find_objects(IMAGE, FramePlace(CAM, 7)) is None, "this frame was never labelled"


def test_background_may_stand_before_a_class_that_was_added_later(tmp_path: Path) -> None:
    golden = open_golden(written(tmp_path / "labels.parquet", finds=True), ("car", "background", "person"))
    labels = golden.label_boxes([asked(5), asked(6)])
    assert golden.background == 1
    assert [of.tolist() for of in labels] == [[0, 1, 2, UNSURE], [1] * 4]
    found = golden.find_objects(IMAGE, FramePlace(CAM, 5))
    assert found is not None
    assert found.classes.tolist() == [0, 2]


def test_label_file_model_of_given_boxes_ignores_confidence(tmp_path: Path) -> None:
    golden = open_golden(written(tmp_path / "labels.csv", finds=False), ("car", "person"))
    assert golden.background is None
    moved = BOXES + np.array([[2, 0, 2, 0], [0, 0, 0, 0], [200, 0, 200, 0], [0, 0, 0, 0]], np.float32)
    labels = golden.label_boxes([asked(5, moved), asked(6), asked(7)])
    assert [of.tolist() for of in labels] == [[0, UNSURE, UNSURE, 0], [UNSURE] * 4, [UNSURE] * 4]
    assert golden.find_objects(IMAGE, FramePlace(CAM, 5)) is None
    with pytest.raises(ValueError, match="stream and frame"):
        golden.label_boxes([Question(BOXES, IMAGE)])


def test_label_file_model_maps_classes_and_refuses_unknown_ones(tmp_path: Path) -> None:
    spec = written(tmp_path / "labels.parquet", finds=False)
    with pytest.raises(UserError, match=r"labels\.parquet knows no 'bus'"):
        open_golden(spec, ("bus",))
    file = tmp_path / "map.yaml"
    file.write_text("flying: [kite]\n")
    golden = open_golden(spec.model_copy(update={"class_map": file}), ("car", "flying"))
    assert golden.label_boxes([asked(5)])[0].tolist() == [0, 1, UNSURE, 0]
    with pytest.raises(UserError, match=r"golden\.weights.*ekya golden label"):
        open_golden(GoldenSpec(model="file"), ("car",))


def test_label_file_proposer_returns_the_files_boxes(tmp_path: Path) -> None:
    path = tmp_path / "labels.parquet"
    twice = Detections(
        np.array([CAR, [1, 0, 40, 40], KITE], np.float32),
        np.array([1, 0, 2]),
        np.array([0.5, 0.9, 0.4], np.float32),
    )
    LabelTable(LabelHead(names=NAMES, finds=True), {CAM: {5: twice}}).save_table(path)
    proposer = LabelFileProposer(read_labels(path), CAM)
    assert proposer.propose_boxes(Frame(5, 0, IMAGE, None)).boxes.tolist() == [[1, 0, 40, 40], KITE]
    assert len(proposer.propose_boxes(Frame(6, 0, IMAGE, None)).boxes) == 0
    assert proposer.operations(IMAGE.shape) == 0
    assert classes_in(read_labels(path), 0.5) == ("person", "car")
