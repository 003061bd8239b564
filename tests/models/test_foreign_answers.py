"""Fuzz of ``detect`` with what broken and foreign networks may answer, in every layout of ONNX files."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_networks import CELLS, SIDE, frame_size, write

from ekya.core.errors import UserError
from ekya.models.golden import detections as suppression
from ekya.models.golden.detections import Detections, ObjectDetector, nms
from ekya.models.golden.golden_model import open_detector

WIDTH, HEIGHT = 80, 40
IMAGE = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
LIMIT = 300

ODD = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, -5.0, -0.5, -0.0, 1e-40, 1.7, 500.0, 3e9)
ORDINARY = (0.0, 0.2, 0.5, 0.8, 1.0, 2.0, 10.0, 30.0, 60.0)

Answers = Mapping[str, np.ndarray]


def of_shape(shape: tuple[int, ...]) -> Callable[[Callable[..., np.ndarray], int], Answers]:
    """Returns a maker of a single output, of which ``N`` rows are written as -1."""

    def make(values: Callable[..., np.ndarray], count: int) -> Answers:
        return {"output0": values(*(count if side == -1 else side for side in shape))}

    return make


def detr(values: Callable[..., np.ndarray], count: int) -> Answers:
    labels = values(1, count)
    return {"boxes": values(1, count, 4), "scores": values(1, count), "labels": labels}


def detr_integers(values: Callable[..., np.ndarray], count: int) -> Answers:
    with np.errstate(invalid="ignore"):
        return {**detr(values, count), "labels": values(1, count).astype(np.int64)}


LAYOUTS = {
    "a score a class": of_shape((1, 7, CELLS)),
    "objectness": of_shape((1, 3 * CELLS, 8)),
    "suppressed": of_shape((1, -1, 6)),
    "suppressed, of pictures": of_shape((-1, 7)),
    "detr": detr,
    "detr, integers": detr_integers,
}

SAID = {
    "a score a class": "cxcywh pixels scores",
    "objectness": "cxcywh pixels scores",
    "suppressed": "x1y1x2y2 pixels scores box-score-class from-0",
    "suppressed, of pictures": "x1y1x2y2 pixels scores box-class-score from-0",
    "detr": "x1y1x2y2 pixels scores from-0",
    "detr, integers": "x1y1x2y2 pixels scores from-0",
}
"""What is said of each, since values that mean nothing do not show it."""


def opened(folder: Path, layout: str, answers: Answers, min_score: float) -> ObjectDetector:
    """Returns a detector that answers this to every picture but the one to which its layout is determined."""
    sizes = frame_size() if layout.startswith("detr") else None
    zeros = {name: np.zeros_like(of) for name, of in answers.items()}
    path = write(folder / "net.onnx", named=answers, at_first=zeros, sizes=sizes)
    return open_detector("onnx", path, min_score, SAID[layout])


def check(found: Detections, names: tuple[str, ...], min_score: float, image: np.ndarray = IMAGE) -> None:
    """Fails unless these detections are as ``Detections`` promises."""
    count = len(found.boxes)
    assert count <= LIMIT
    assert found.boxes.shape == (count, 4)
    assert found.classes.shape == found.scores.shape == (count,)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.classes.dtype == np.int64
    assert np.isfinite(found.boxes).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, 2:] <= [image.shape[1], image.shape[0]]).all()
    assert (found.boxes[:, :2] < found.boxes[:, 2:]).all()
    assert ((found.classes >= 0) & (found.classes < len(names))).all()
    assert ((found.scores >= min_score) & (found.scores <= 1)).all()
    assert (np.diff(found.scores) <= 0).all()


@st.composite
def value_makers(draw: st.DrawFn) -> Callable[..., np.ndarray]:
    """Functions of a shape that return float32 values, a part of them odd."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    odd = np.array(draw(st.lists(st.sampled_from(ODD), min_size=1, max_size=4)), np.float32)
    part = draw(st.sampled_from((0.0, 0.05, 0.5, 1.0)))

    def values(*shape: int) -> np.ndarray:
        usual = rng.choice(np.array(ORDINARY, np.float32), shape) + rng.random(shape, np.float32) / 8
        return np.where(rng.random(shape) < part, rng.choice(odd, shape), usual).astype(np.float32)

    return values


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    values=value_makers(),
    count=st.sampled_from([0, 1, 7, 300, 3000]),
    min_score=st.sampled_from([0.0, 0.4]),
)
def test_foreign_answers_never_break_detections(
    layout: str,
    values: Callable[..., np.ndarray],
    count: int,
    min_score: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    detector = opened(folder, layout, LAYOUTS[layout](values, count), min_score)
    check(detector.detect_objects(IMAGE), detector.names, min_score)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(values=value_makers(), first=value_makers(), count=st.sampled_from([0, 1, 7, 300]))
def test_foreign_answers_of_which_nothing_is_said_are_read_or_refused(
    layout: str,
    values: Callable[..., np.ndarray],
    first: Callable[..., np.ndarray],
    count: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "unsaid.onnx"
    make, sizes = LAYOUTS[layout], frame_size() if layout.startswith("detr") else None
    write(path, named=make(values, count), at_first=make(first, count), sizes=sizes)
    try:
        detector = open_detector("onnx", path, 0.4)
        check(detector.detect_objects(IMAGE), detector.names, 0.4)
    except UserError as refused:
        assert str(refused).startswith(f"{path}: answers "), "which file, and what was seen"
        assert "; " in str(refused), "with a remedy"


@settings(max_examples=15)
@given(values=value_makers(), cells=st.sampled_from([1, 3, 22, 40]), min_score=st.sampled_from([0.0, 0.4]))
def test_foreign_answers_never_break_fastestdet(
    values: Callable[..., np.ndarray],
    cells: int,
    min_score: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "grid.onnx"
    write(path, values(1, 85, cells, cells), taken=(1, 3, 352, 352), names=None)
    detector = open_detector("onnx", path, min_score)
    check(detector.detect_objects(IMAGE), detector.names, min_score)


def test_of_foreign_answers_in_masses_few_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    monkeypatch.setattr(suppression, "nms", lambda boxes, *of: compared.append(len(boxes)) or nms(boxes, *of))
    across, down = np.meshgrid(np.linspace(0, 60, 400), np.linspace(16, 46, 250))
    corners = np.stack([across.ravel(), down.ravel()], axis=1)  # 100 000, in pixels of the input
    boxes = np.concatenate([corners, corners + 0.1], axis=1).astype(np.float32)[None]
    ones = np.ones((1, len(corners), 1), np.float32)
    named = {"labels": ones[..., 0].astype(np.int64), "scores": ones[..., 0], "boxes": boxes / SIDE}
    for layout, answers in {
        "suppressed": {"output0": np.concatenate([boxes, ones, ones], axis=2)},
        "suppressed, of pictures": {"output0": np.concatenate([ones, boxes, ones, ones], axis=2)[0]},
        "detr": named,
    }.items():
        detector = opened(tmp_path, layout, answers, 0.5)
        found = detector.detect_objects(IMAGE)
        assert compared.pop() <= 1000
        assert not compared
        assert len(found.boxes) == LIMIT
        check(found, detector.names, 0.5)
