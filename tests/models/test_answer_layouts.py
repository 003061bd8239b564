"""Every layout of detectors that docs list, on networks that see: what they find, or why it is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from finding_network import CELLS, SIDES, draw_frame, write_finder
from torch import Tensor

from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.onnx_detector import OnnxDetector

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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_decided_by_values(layout: str, tmp_path: Path) -> None:
    form, options = LAYOUTS[layout]
    say = options.pop("say", None)
    path = write_finder(tmp_path / "net.onnx", form, **options)
    check_frames(open_detector("onnx", path, 0.5, say))
