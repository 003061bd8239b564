"""Every layout of detectors that docs list, on networks that see: what they find, or why it is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from finding_network import CELLS, SIDES, draw_frame, write_finder
from onnx_networks import write
from pydantic import ValidationError
from torch import Tensor

from ekya.core.errors import UserError
from ekya.models.golden.golden_model import learn_layout, open_detector
from ekya.models.golden.onnx_detector import OnnxDetector
from ekya.models.golden.spec import GoldenSpec

HEIGHT, WIDTH = SIDES
WHOLE = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT]).float()

FRAMES = (
    {2: (20, 70, 60, 100)},
    {0: (10, 20, 60, 60), 1: (120, 10, 180, 50), 2: (90, 70, 140, 110)},
    {1: (30, 10, 70, 90)},
    {0: (150, 60, 190, 110), 2: (10, 10, 50, 50)},
    {0: (100, 30, 130, 100), 1: (20, 70, 80, 110)},
)


def centred(boxes: Tensor) -> Tensor:
    return torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


def placed(boxes: Tensor) -> Tensor:
    return torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)


def same(boxes: Tensor) -> Tensor:
    return boxes


def down_first(boxes: Tensor) -> Tensor:
    return boxes[:, [1, 0, 3, 2]]


def head(
    order: Callable[[Tensor], Tensor] = centred,
    parts: bool = False,
    count: int = CELLS,
    logits: bool = False,
    objectness: float | None = None,
    transposed: bool = False,
) -> Callable[..., tuple[Tensor, ...]]:
    """Rows of all places: small boxes of no worth, and the three."""

    def form(boxes: Tensor, scores: Tensor, labels: Tensor, sizes: Tensor | None) -> tuple[Tensor, ...]:
        rng = np.random.default_rng(1)
        corner = torch.tensor(rng.random((count - 3, 2)) * [WIDTH, HEIGHT]).float()
        every = order(torch.cat([boxes, torch.cat([corner - 3, corner + 9], 1)])) / (WHOLE if parts else 1)
        by_class = torch.cat([scores[:, None] * torch.eye(3), torch.full((count - 3, 3), 0.01)])
        if objectness == 1:
            by_class = torch.cat([torch.ones(count, 1), by_class], 1)
        elif objectness is not None:
            by_class = torch.cat([torch.full((count, 1), objectness), by_class / objectness], 1)
        if logits:
            by_class = torch.logit(by_class.clamp(0.0001, 0.9999))
        rows = torch.cat([every, by_class], 1)
        return ((rows.transpose(0, 1) if transposed else rows)[None],)

    return form


def table(
    columns: str,
    order: Callable[[Tensor], Tensor] = same,
    parts: bool = False,
    first: int = 0,
    filling: float = 0,
) -> Callable[..., tuple[Tensor, ...]]:
    """Rows of box (b), score (s), class (c) and the picture's index (i) in this order, and of filling."""

    def form(boxes: Tensor, scores: Tensor, labels: Tensor, sizes: Tensor | None) -> tuple[Tensor, ...]:
        of = {
            "b": order(boxes / (WHOLE if parts else 1)),
            "s": scores[:, None],
            "c": (labels + first).float()[:, None],
            "i": torch.zeros(3, 1),
        }
        rows = torch.cat([of[one] for one in columns], 1)
        rows = torch.where(scores[:, None] > 0, rows, torch.full_like(rows, filling))
        return (torch.cat([rows, torch.full((4, rows.shape[1]), filling)])[None],)

    return form


def apart(
    kinds: str,
    order: Callable[[Tensor], Tensor] = same,
    parts: bool = False,
    first: int = 0,
    floats: bool = False,
) -> Callable[..., tuple[Tensor, ...]]:
    """Outputs of boxes (b), scores (s), labels (l), their number (n), boxes with scores (d) in this order."""

    def form(boxes: Tensor, scores: Tensor, labels: Tensor, sizes: Tensor | None) -> tuple[Tensor, ...]:
        best = torch.argsort(-scores)
        shown = boxes / (WHOLE if parts or sizes is not None else 1)
        if sizes is not None and not parts:
            shown = shown * torch.cat([sizes, sizes], 1)
        shown = order(shown)
        of = {
            "b": shown[best][None],
            "s": scores[best][None],
            "l": (labels[best] + first).float()[None] if floats else (labels[best] + first)[None],
            "n": (scores > 0).sum()[None].float() if floats else (scores > 0).sum()[None],
            "d": torch.cat([shown[best], scores[best][:, None]], 1)[None],
        }
        return tuple(of[one] for one in kinds)

    return form


def by_class(order: Callable[[Tensor], Tensor], kind: str) -> Callable[..., tuple[Tensor, ...]]:
    """Boxes and a score for each class, of 100 queries; with a column for no object first or last."""

    def form(boxes: Tensor, scores: Tensor, labels: Tensor, sizes: Tensor | None) -> tuple[Tensor, ...]:
        rng = np.random.default_rng(1)
        corner = torch.tensor(rng.random((97, 2)) * [WIDTH - 20, HEIGHT - 20]).float()
        every = order(torch.cat([boxes, torch.cat([corner, corner + 12], 1)])) / WHOLE
        columns = torch.cat([scores[:, None] * torch.eye(3), torch.full((97, 3), 0.01)])
        none = 1 - columns.sum(1, keepdim=True)
        if kind == "sigmoid":
            columns = torch.logit(columns.clamp(0.0001, 0.9999))
        elif kind == "softmax":
            columns = torch.log(torch.cat([columns, none], 1).clamp(0.0001, 1))
        elif kind == "first":
            columns = torch.cat([none, columns], 1)
        return every[None], columns[None]

    return form


PARTED = {"parts": True}
TF_OUTPUTS = ("num_detections", "detection_scores", "detection_boxes", "detection_classes")
LBS = ("labels", "boxes", "scores")

LAYOUTS = {
    "YOLOv8": (head(transposed=True), {}),
    "YOLOv8 in parts": (head(transposed=True, parts=True), {}),
    "YOLOv8, rows first": (head(), {}),
    "YOLOv8, logits": (head(transposed=True, logits=True), {}),
    "YOLOv8 of TensorFlow": (head(transposed=True, parts=True), {"taken": "last"}),
    "corners at all places": (head(same), {}),
    "RT-DETR of Ultralytics": (head(parts=True, count=300), {}),
    "YOLOv5": (head(count=3 * CELLS, objectness=0.95), {}),
    "YOLOv5 in parts": (head(count=3 * CELLS, objectness=0.95, parts=True), {}),
    "YOLOv6": (head(objectness=1), {}),
    "suppressed": (table("bsc"), {}),
    "suppressed, filled with -1": (table("bsc", filling=-1), {}),
    "suppressed, in parts": (table("bsc", parts=True), {}),
    "suppressed, class before score": (table("bcs"), {}),
    "suppressed, class first": (table("csb", parts=True), {}),
    "suppressed, score first": (table("scb"), {}),
    "suppressed, corner and size": (table("bsc", placed), {}),
    "suppressed, centre and size": (table("bsc", centred, parts=True), {}),
    "suppressed, corner and size in parts": (table("bsc", placed, parts=True), {}),
    "suppressed, centre and size in pixels": (table("bsc", centred), {}),
    "suppressed, y first": (table("bsc", down_first), {}),
    "YOLOv7 with NMS": (table("ibcs"), {}),
    "YOLOv7 with NMS in parts": (table("ibsc", parts=True), {}),
    "OpenVINO's SSD": (table("icsb", parts=True, first=1), {}),
    "RT-DETR": (apart("lbs"), {"outputs": LBS, "sizes": True}),
    "RT-DETR, in parts": (
        apart("bsl", parts=True),
        {"outputs": ("boxes", "scores", "labels"), "sizes": True},
    ),
    "torchvision": (apart("bls", first=1), {"outputs": ("b", "l", "s"), "taken": "one"}),
    "torchvision, without names": (apart("sbl", first=1), {"outputs": ("a7", "b8", "c9")}),
    "TensorFlow": (
        apart("nsbl", down_first, parts=True, first=1, floats=True),
        {"outputs": TF_OUTPUTS, "taken": "last bytes", "norm": lambda picture: picture / 255},
    ),
    "TensorFlow, x first all the same": (
        apart("nsbl", parts=True, first=1, floats=True),
        {"outputs": TF_OUTPUTS, "taken": "last"},
    ),
    "y first, without a sign of it": (apart("sbl", down_first), {"outputs": ("p", "q", "r")}),
    "with their number": (apart("nbsl"), {"outputs": ("num_dets", "det_boxes", "det_scores", "det_classes")}),
    "SSD in parts": (apart("blsn", parts=True, first=1), {"outputs": ("bboxes", "labels", "scores", "num")}),
    "MMDetection": (apart("dl"), {"outputs": ("dets", "labels")}),
    "DETR": (by_class(centred, "softmax"), {"outputs": ("pred_boxes", "logits")}),
    "RF-DETR": (by_class(centred, "sigmoid"), {"outputs": ("dets", "labels")}),
    "SSD of PyTorch": (by_class(same, "first"), {"outputs": ("boxes", "scores")}),
    "pixels to 255": (
        head(transposed=True),
        {"norm": lambda picture: picture / 255, "say": "0..255"},
    ),
    "pixels as ImageNet's": (
        table("bsc"),
        {
            "norm": lambda picture: (
                picture * torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
                + torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
            ),
            "say": "imagenet",
        },
    ),
    "BGR, stretched": (table("bsc"), {"norm": lambda picture: picture.flip(1), "say": "bgr stretch"}),
}


def check_frames(detector: OnnxDetector) -> None:
    """Fails unless the detector finds what is drawn in every frame, from the first on."""
    for boxes in FRAMES:
        found = detector.detect_objects(draw_frame(boxes))
        shown = dict(zip(found.classes.tolist(), found.boxes, strict=True))
        assert shown.keys() == boxes.keys()
        for colour, box in boxes.items():
            np.testing.assert_allclose(shown[colour], box, atol=2.5)


def of_rows(*rows: list[float]) -> dict[str, np.ndarray]:
    return {"output0": np.array([rows], np.float32)}


def outputs_apart(labels: list[int], boxes: list[list[float]] | None = None) -> dict[str, np.ndarray]:
    boxes = boxes or [[4.0, 4, 20, 20]] * len(labels)
    scores = np.full((1, len(labels)), 0.9, np.float32)
    return {"a": np.array([boxes], np.float32), "b": scores, "c": np.array([labels], np.int64)}


OUTSIDE = [60.0, 60, 30, 30]

REFUSED = {
    "boxes in no order that lies in the picture": (
        of_rows(*[[*OUTSIDE, 0.9, 1]] * 9),
        r"output0 \(1, 9, 6\), boxes such as 60 60 30 30, whose order 4 frames .*golden\.layout: x1y1x2y2 or",
    ),
    "boxes that mirror images do not tell": (
        outputs_apart([0, 1]),
        r"boxes such as 4 4 20 20, whose order .*golden\.layout: y1x1y2x2 or",
    ),
    "scores in percent": (
        of_rows([4, 4, 20, 20, 88.5, 1], [8, 9, 30, 28, 71, 0]),
        r"rows such as 4 4 20 20 88\.5 1, of which no column can be a score in 0\.\.1.*; export it",
    ),
    "class numbers from 0 or from 1": (
        outputs_apart([1, 2]),
        r"class numbers 1 2, which may count from-0 or from-1.*golden\.layout: from-0 or golden",
    ),
    "class numbers of another list": (outputs_apart([4]), r"class number 4 where 3 .*net\.names"),
    "scores of other classes": (
        {"boxes": np.ones((1, 9, 4), np.float32), "scores": np.full((1, 9, 7), 0.1, np.float32)},
        r"boxes \(1, 9, 4\), scores \(1, 9, 7\) .*7 scores for each box where 3 .*net\.names",
    ),
    "no object in the middle": (
        {
            "boxes": np.ones((1, 9, 4), np.float32),
            "scores": np.tile(np.float32([0.1, 0.7, 0.1, 0.1]), (1, 9, 1)),
        },
        "4 scores for each box where 3 ",
    ),
    "masks": (
        {**outputs_apart([0]), "masks": np.zeros((1, 1, 28, 28), np.float32)},
        r"4 answers, a \(1, 1, 4\), .*of which boxes, scores and labels are not known",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_layout_that_stays_ambiguous_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    answers, words = REFUSED[case]
    path = write(tmp_path / "net.onnx", named=answers)
    with pytest.raises(UserError, match=rf"net\.onnx: answers .*{words}") as refused:
        detector = open_detector("onnx", path, 0.5)
        for _ in range(4):
            detector.detect_objects(draw_frame({0: (10, 20, 60, 60)}))
    assert "named by the key 'weights'; " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_layout_that_is_named_is_not_decided_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", named=outputs_apart([1, 2], [[4, 8, 20, 24], [30, 4, 50, 60]]))
    detector = open_detector("onnx", path, 0.5, "from-1 y1x1y2x2, pixels")
    for _ in range(5):
        found = detector.detect_objects(np.zeros((64, 64, 3), np.uint8))
        assert found.classes.tolist() == [0, 1]
        assert found.boxes.tolist() == [[8, 4, 24, 20], [4, 30, 60, 50]]


def test_learnt_layout_is_said_in_words_that_a_run_can_be_given(tmp_path: Path) -> None:
    path = write_finder(tmp_path / "net.onnx", *LAYOUTS["y first, without a sign of it"][:1], ("p", "q", "r"))
    spec = GoldenSpec(model="onnx", weights=path)
    empty = draw_frame({})
    assert learn_layout(spec, [empty]) is None, "nothing is found"
    layout = learn_layout(spec, [empty, draw_frame(FRAMES[0])])
    assert {"y1x1y2x2", "pixels", "from-0", "stretch"} <= set(layout.split())
    check_frames(
        open_detector("onnx", path, 0.5, GoldenSpec(model="onnx", weights=path, layout=layout).layout)
    )
    assert learn_layout(GoldenSpec(), [empty]) is None, "no ONNX file"


@pytest.mark.parametrize(
    ("layout", "model", "words"),
    [
        ("cxcywh partz", "onnx", "no word 'partz'; use some of x1y1x2y2, "),
        ("cxcywh, xywh", "onnx", "both cxcywh and xywh; keep"),
        ("parts", "resnext29", "layout is of an ONNX file; "),
        ("parts", "ssdlite320_mobilenet_v3_large", "layout is of an ONNX file; "),
    ],
)
def test_layout_words_are_checked(layout: str, model: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GoldenSpec(model=model, weights=Path("a.onnx") if model == "onnx" else None, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_decided_by_values(layout: str, tmp_path: Path) -> None:
    form, options = LAYOUTS[layout]
    written = {name: value for name, value in options.items() if name != "say"}
    path = write_finder(tmp_path / "net.onnx", form, **written)
    check_frames(open_detector("onnx", path, 0.5, options.get("say")))
