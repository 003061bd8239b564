from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from draw_samples import draw_video
from pydantic import ValidationError
from torch import Tensor, nn
from torchvision.models import get_model_weights

from ekya.config.fleet_reading import parse_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.classifier import GoldenClassifier, grouped
from ekya.models.golden.detections import ON_CPU, Detections, Question
from ekya.models.golden.golden_from_detections import UNSURE, detector_model
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.spec import CLASSIFIERS, DETECTORS, RESNEXT29, GoldenSpec, detector_of, imported
from ekya.models.proposer import DetectedBoxes, GivenBoxes
from ekya.pipeline import discover_classes
from ekya.pipeline.discover_classes import (
    LEAST_SAMPLED,
    MOST_SAMPLED,
    SAMPLED_IN_ALL,
    occurring_classes,
    with_classes,
)
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.ingest.video import VideoSpec


class Scripted:
    """Fake detector that returns given detections for every picture."""

    names = ("person", "car", "kite")
    runs_on = ON_CPU

    def __init__(self, *rows: tuple[list[float], int, float]) -> None:
        self.rows = rows
        self.asked = 0

    def detect_each(self, images: Sequence[np.ndarray]) -> list[Detections]:
        return [self.detect_objects(image) for image in images]

    def detect_objects(self, image: np.ndarray) -> Detections:
        self.asked += 1
        return Detections(
            np.array([box for box, _, _ in self.rows], dtype=np.float32).reshape(-1, 4),
            np.array([c for _, c, _ in self.rows], dtype=np.int64),
            np.array([s for _, _, s in self.rows], dtype=np.float32),
        )

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        return shape[0] * shape[1]


IMAGE = np.zeros((100, 200, 3), dtype=np.uint8)


def test_detector_model_label_confirms_boxes_or_says_background() -> None:
    detector = Scripted(([0, 0, 40, 40], 1, 0.9), ([100, 0, 140, 40], 2, 0.9), ([0, 50, 20, 90], 0, 0.8))
    golden = detector_model(("car", "person", "background"), detector, 0.6)
    boxes = np.array([[0, 0, 40, 36], [30, 0, 70, 40], [100, 0, 140, 40], [0, 50, 20, 90]], dtype=np.float32)
    empty = np.zeros((0, 4), dtype=np.float32)
    labels = golden.label_boxes([Question(boxes, IMAGE), Question(empty, IMAGE)])
    assert labels[0].tolist() == [0, 2, 2, 1], "a kite is nothing that this fleet knows"
    assert labels[1].shape == (0,)
    assert detector.asked == 1, "a picture without boxes costs nothing"
    assert golden.operations([Question(boxes, IMAGE), Question(empty, IMAGE)]) == 20_000
    found = golden.find_objects(IMAGE)
    assert found.classes.tolist() == [0, 1]
    assert found.boxes.tolist() == [[0, 0, 40, 40], [0, 50, 20, 90]]


def test_detector_model_known_detections_are_not_computed_again() -> None:
    detector = Scripted(([0, 0, 40, 40], 1, 0.9), ([100, 0, 140, 40], 1, 0.5))
    golden = detector_model(("car", "person", "background"), detector, 0.6)
    proposals = DetectedBoxes(detector).propose_boxes(Frame(0, 0, IMAGE, None))
    assert detector.asked == 1
    known, unknown = Question(proposals.boxes, None, proposals.found), Question(proposals.boxes, IMAGE)
    assert golden.label_boxes([known])[0].tolist() == golden.label_boxes([unknown])[0].tolist() == [0, UNSURE]
    assert detector.asked == 2, "once to propose, and once for the picture that nobody had looked at"
    assert golden.operations([known, unknown]) == 20_000


def test_classifier_without_picture_raises() -> None:
    golden = GoldenClassifier(("red", "green", "blue"), Reddest(), 16)
    with pytest.raises(ValueError, match="picture itself"):
        golden.label_boxes([Question(np.ones((1, 4), dtype=np.float32), None)])


@pytest.mark.parametrize("classes", [(), ("car",), ("cra", "background")])
def test_detector_model_unknown_classes_are_refused(classes: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="'classes'"):
        detector_model(classes, Scripted(), 0.6)


def test_detector_model_unsure_detection_is_neither_object_nor_background() -> None:
    half, kite, sure = [0, 0, 40, 40], [100, 0, 140, 40], [0, 50, 20, 90]
    detector = Scripted((half, 1, 0.5), (kite, 2, 0.5), (sure, 0, 0.6), (sure, 1, 0.5))
    golden = detector_model(("car", "person", "background"), detector, 0.6)
    (labels,) = golden.label_boxes([Question(np.array([half, kite, sure], dtype=np.float32), IMAGE)])
    assert labels.tolist() == [UNSURE, golden.background, 1]
    assert golden.find_objects(IMAGE).classes.tolist() == [1], "the reference is what is sure"
    assert golden.find_objects(IMAGE).doubtful.tolist() == [half], (
        "a duplicate of what is sure is not doubtful"
    )


def test_detector_model_find_has_one_box_of_each_object() -> None:
    """One van is found as a car and as a person; two people who stand close are two."""
    van, again = [0, 0, 40, 40], [0, 0, 40, 38]
    one, other = [100, 0, 120, 40], [108, 0, 128, 40]
    detector = Scripted(
        (van, 1, 0.9), (one, 0, 0.8), (other, 0, 0.7), (again, 0, 0.6), ([0, 60, 9, 90], 2, 0.9)
    )
    golden = detector_model(("car", "person"), detector, 0.4, names_boxes=False)
    found = golden.find_objects(IMAGE)
    assert (golden.background, golden.finds) == (None, True)
    assert found.boxes.tolist() == [van, one, other]
    assert found.classes.tolist() == [0, 1, 1]
    assert len(found.doubtful) == 0
    assert golden.operations([Question(found.boxes[:0], IMAGE)]) == 20_000, "it is charged by the image"


def test_detector_model_find_of_a_copy_is_in_pixels_of_the_frame() -> None:
    golden = detector_model(("car",), Scripted(([0, 10, 40, 40], 1, 0.9)), 0.4, names_boxes=False)
    assert golden.find_objects(IMAGE, size=(400, 300)).boxes.tolist() == [[0, 30, 80, 120]]


class Reddest(nn.Module):
    """Classifier that returns the strongest colour."""

    def forward(self, crops: Tensor) -> Tensor:
        return crops.mean(dim=(2, 3))


def test_classifier_label_keeps_the_order_of_boxes_and_pictures() -> None:
    image = IMAGE.copy()
    boxes = np.array([[0, 0, 20, 20], [50, 0, 70, 20], [100, 0, 120, 20]], dtype=np.float32)
    for (x0, _, x1, _), channel in zip(boxes.astype(int), (2, 1, 0), strict=True):
        image[0:25, max(0, x0 - 5) : x1 + 5, channel] = 250  # BGR: red, green, blue
    golden = GoldenClassifier(("red", "green", "blue"), Reddest(), 16)
    empty = np.zeros((0, 4), dtype=np.float32)
    many = np.repeat(boxes, 20, axis=0)
    labels = golden.label_boxes([Question(of, image) for of in (boxes, empty, boxes[::-1], many)])
    assert [part.tolist() for part in labels[:3]] == [[0, 1, 2], [], [2, 1, 0]]
    assert labels[3].tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert [part.tolist() for part in golden.label_boxes([Question(empty, image)])] == [[]]
    assert golden.find_objects(image) is None


def test_classifier_operations_grow_with_the_crops() -> None:
    golden = GoldenClassifier(("a", "b"), nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2)), 16)
    boxes = np.zeros((3, 4), dtype=np.float32)
    assert golden.operations([Question(boxes, IMAGE), Question(boxes[:1], IMAGE)]) == 4 * 2 * 3 * 16 * 16 * 2


@pytest.mark.parametrize("model", sorted(set(CLASSIFIERS) - {RESNEXT29}))
def test_imagenet_map_names_categories_of_imagenet_only(model: str, tmp_path: Path) -> None:
    file = shipped_path("golden_models/imagenet_to_fleet.yaml")
    categories = tuple(get_model_weights(model).DEFAULT.meta["categories"])
    classes = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
    grouping = grouped(classes, categories, file, model)
    assert grouping.shape == (1000, 6)
    assert (grouping.sum(dim=1) <= 1).all(), "no category counts twice"
    assert (grouping.sum(dim=0) > 0).all()
    with pytest.raises(UserError, match="knows no 'kite!', and no class map says"):
        grouped(("kite!",), categories, file, model)
    wrong = tmp_path / "map.yaml"
    wrong.write_text("car: [sports car, sprots car]\n")
    with pytest.raises(UserError, match=r"map\.yaml.*'sprots car'"):
        grouped(("car",), categories, wrong, model)


def test_golden_spec_with_onnx_file_is_a_detector(tmp_path: Path) -> None:
    assert detector_of(GoldenSpec()) is None
    assert detector_of(GoldenSpec(weights=Path("some.onnx"))) == "onnx"
    assert detector_of(GoldenSpec(model="fastestdet", weights=Path("some.onnx"))) == "fastestdet"
    assert detector_of(GoldenSpec(model="retinanet_resnet50_fpn_v2")) == "retinanet_resnet50_fpn_v2"
    with pytest.raises(ValidationError, match="resnext101_32x8d"):
        GoldenSpec(model="resnext")
    with pytest.raises(ValidationError):
        GoldenSpec.model_validate({"modle": "resnext29"})
    with pytest.raises(UserError, match=r"gone\.onnx.*'weights'"):
        open_golden(GoldenSpec(weights=tmp_path / "gone.onnx"), ("car", "background"))


class Still:
    """Source whose pictures carry their index and whose length is unknown."""

    def __init__(self, frames: int) -> None:
        self.count = frames

    def frames(self) -> Iterator[tuple[Frame, None]]:
        for i in range(self.count):
            yield Frame(i, i * 40_000, np.full((4, 4, 3), i % 256, np.uint8), None), None


def test_occurring_classes_come_from_a_spread_sample() -> None:
    class ByIndex(Scripted):
        seen: list[int]

        def detect_objects(self, image: np.ndarray) -> Detections:
            index = int(image[0, 0, 0])
            self.seen.append(index)
            kinds = [0] * 5 + ([1] if index > 120 else []) + ([2] if index == 0 else [])
            boxes = np.zeros((len(kinds), 4), np.float32)
            return Detections(boxes, np.array(kinds, np.int64), np.ones(len(kinds), np.float32))

    detector = ByIndex()
    detector.seen = []
    assert occurring_classes(detector, Still(250)) == ("person", "car")
    assert MOST_SAMPLED <= len(detector.seen) <= 2 * MOST_SAMPLED
    assert len(set(np.diff(detector.seen))) == 1, "evenly spread"
    assert max(detector.seen) > 230
    assert occurring_classes(Scripted(), Still(3)) == ()
    detector.seen = []
    occurring_classes(detector, *(Still(250) for _ in range(20)))
    assert 20 * LEAST_SAMPLED <= len(detector.seen) <= 40 * LEAST_SAMPLED
    assert 20 * LEAST_SAMPLED > SAMPLED_IN_ALL


@pytest.mark.live
@pytest.mark.virtual
def test_occurring_classes_of_a_recording_take_what_its_header_promises(tmp_path: Path) -> None:
    detector = Scripted()
    with SourceProcess(VideoSpec(files=(draw_video(tmp_path / "a.avi", 200),)), ()) as source:
        occurring_classes(detector, source)
    assert detector.asked == MOST_SAMPLED


@pytest.mark.live
@pytest.mark.virtual
def test_classes_of_a_long_recording_are_sought_all_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_video(tmp_path / "a.avi", 300)
    (tmp_path / "net.onnx").write_bytes(b"")
    fleet = parse_fleet(
        {
            "name": "long",
            "window_s": 20,
            "golden": {"model": "onnx", "weights": tmp_path / "net.onnx"},
            "edge": {"task": "classify"},
            "streams": [{"id": "gate", "source": {"kind": "video", "files": [tmp_path / "a.avi"]}}],
        },
        "test",
        (tmp_path,),
    )
    for longest, asked in ((1000, MOST_SAMPLED), (100, LEAST_SAMPLED)):
        detector = Scripted(([0, 0, 20, 20], 1, 0.9))
        monkeypatch.setattr(discover_classes, "LONG_FRAMES", longest)
        monkeypatch.setattr(discover_classes, "open_detector_of", lambda *_, made=detector: made)
        assert with_classes(fleet).classes == ("car", "background")
        assert detector.asked == asked


def test_given_boxes_are_the_frames_own() -> None:
    boxes = np.ones((2, 4), dtype=np.float32)
    assert GivenBoxes().propose_boxes(Frame(0, 0, IMAGE, boxes)).boxes is boxes
    with pytest.raises(UserError, match="golden"):
        GivenBoxes().propose_boxes(Frame(0, 0, IMAGE, None))


def test_registry_entry_names_a_function_that_exists() -> None:
    openers = [*DETECTORS.values(), *(entry.opener for entry in CLASSIFIERS.values())]
    assert all(callable(imported(opener)) for opener in openers)
