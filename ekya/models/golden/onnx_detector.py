"""Detectors as ONNX files, and the decoders of their answers, one for each layout of YOLO and DETR families.

For C classes and N boxes. The picture is RGB in [0, 1], that of FastestDet BGR.

| output | meaning | exported by |
|---|---|---|
| (1, 4+C, N) | centre, size in pixels; a score per class | YOLOv8, v9, v11, v12 |
| (1, N, 5+C) | centre, size in pixels; objectness; a score per class; three boxes per cell | YOLOv5, v7 |
| (1, N, 6) | corners in pixels, score, class; after suppression | YOLOv10, v26, and exports with NMS |
| (N, 7) | index of the image, corners, class, score; after suppression | YOLOv7 with NMS |
| ``labels``, ``scores`` (1, N), ``boxes`` (1, N, 4) | corners in the frame's pixels | RT-DETR, D-FINE, DEIM |
| (1, 5+C, n, n) | a cell: objectness; centre, size before tanh, sigmoid; a score per class | FastestDet |

YOLO networks see the frame letterboxed with grey borders. The others see it stretched to the input; the DETR
family takes its width and height, in this order, as ``orig_target_sizes`` (1, 2). (1, N, 5+C) with one box
per cell is rejected: YOLOX and YOLOv6 use it with different meanings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.models.golden.checksum import existing
from ekya.models.golden.class_map import CLASS_OF_CATEGORY, coco_names
from ekya.models.golden.detections import Detections, ObjectDetector, suppressed
from ekya.models.golden.onnx_file import SIZES_INPUT, Answers, OnnxFile, names_of, open_file

_GREY = 114
_YOLO_IOU = 0.45
_DETR_IOU = 0.7  # Its queries compete in training; what is left are near copies.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
_ANCHORS = 3
_OBJECTNESS_POWER = 0.6

_Picture = tuple[NDArray[np.float32], tuple[float, float], tuple[float, float]]
_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Layout:
    """Input and outputs of a network.

    Attributes:
        fit: makes the network's picture of an image, as ``letterboxed`` does.
        decode: boxes of the answers in pixels of the picture (in those of the frame after ``stretched``),
            with duplicates, in any order. Answers of foreign networks are not checked: any value may occur.
        max_iou: overlap of two boxes of one class above which they show one object.
    """

    fit: Callable[[NDArray[np.uint8], int, int], _Picture]
    decode: Callable[[Answers], Detections]
    max_iou: float


def layout_of(file: OnnxFile, answers: Answers, names: tuple[str, ...]) -> Layout:
    """Returns the layout of a network, from what it answers to a picture of noise.

    Args:
        file: the network.
        answers: its answers.
        names: its classes.

    Raises:
        UserError: the layout is not supported, ambiguous, or does not fit the number of classes.
    """
    if file.notes.get("task", "detect") != "detect":
        raise refused(file.path, f"the task '{file.notes['task']}'", "export a network that detects")
    named = set(answers) == {"labels", "boxes", "scores"}
    if named and file.takes_size:
        return Layout(stretched, _queries(file, answers, names), _DETR_IOU)
    if named or file.takes_size:
        raise refused(
            file.path,
            f"{', '.join(answers)} and takes {'' if file.takes_size else 'no '}{SIZES_INPUT}",
            f"export it with {SIZES_INPUT} and the outputs labels, boxes and scores, or with one output",
        )
    if len(answers) != 1:
        raise refused(file.path, f"{len(answers)} answers", "export it with one")
    if _is_grid(np.shape(next(iter(answers.values()))), len(names)):
        return Layout(squeezed, partial(_grid, width=file.width, height=file.height), _YOLO_IOU)
    return Layout(letterboxed, _decoder(file, np.shape(next(iter(answers.values()))), len(names)), _YOLO_IOU)


def refused(path: Path, answers: str, remedy: str) -> UserError:
    """Returns the error of a network whose answers cannot be read."""
    return UserError(f"{path}: answers {answers}, named by the key 'weights'; {remedy}.")


def letterboxed(image: NDArray[np.uint8], height: int, width: int) -> _Picture:
    """Fits an image into a picture in proportion, centred, with grey borders.

    Args:
        image: (H, W, 3) uint8 BGR.
        height, width: of the network's input, pixels.

    Returns:
        (3, height, width) float32 RGB in [0, 1]; the factors of scaling across and down; and the left and
        upper border in pixels.
    """
    scale = min(height / image.shape[0], width / image.shape[1])
    # Of a very long image at least a row or a column is left.
    inner = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((height, width, 3), _GREY, np.uint8)
    canvas[top : top + inner[1], left : left + inner[0]] = cv2.resize(image, inner)
    return _rgb(canvas), (scale, scale), (left, top)


def stretched(image: NDArray[np.uint8], height: int, width: int) -> _Picture:
    """Fits an image into a picture without borders, out of proportion, for a network that scales its boxes.

    Returns:
        As ``letterboxed``; nothing is left to scale or to move.
    """
    return _rgb(cv2.resize(image, (width, height))), (1.0, 1.0), (0.0, 0.0)


def squeezed(image: NDArray[np.uint8], height: int, width: int) -> _Picture:
    """Fits an image into a picture without borders, out of proportion, with its colours in BGR.

    Returns:
        As ``letterboxed``.
    """
    scale = (width / image.shape[1], height / image.shape[0])
    return _rgb(cv2.resize(image, (width, height)))[::-1], scale, (0.0, 0.0)


def _rgb(image: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(image[:, :, ::-1].transpose(2, 0, 1), dtype=np.float32) / np.float32(255)


def _decoder(file: OnnxFile, shape: tuple[int, ...], classes: int) -> Callable[[Answers], Detections]:
    """Returns the decoder for a single output of this shape."""
    if len(shape) == 2 and shape[1] == 7:
        return _suppressed_of_pictures
    if len(shape) == 3 and shape[0] == 1:
        # The number of boxes follows from the size of the input, which tells the layouts apart.
        cells = {_cells(file, strides) for strides in _STRIDES}
        if shape[1] == 4 + classes and shape[2] in cells:
            return _scores_a_class
        if shape[2] == 5 + classes and shape[1] in {_ANCHORS * count for count in cells}:
            return _objectness
        if shape[2] == 5 + classes and shape[1] in cells:
            raise refused(
                file.path,
                f"{shape}, which YOLOX and YOLOv6 answer and mean different things by",
                "export it with suppression (NMS)",
            )
        if shape[2] == 6:
            return _suppressed
    raise refused(
        file.path,
        f"{shape} to a picture of {file.height} x {file.width}, none of the layouts that are known for "
        f"{classes} classes",
        f"export it as YOLOv8 does, (1, {4 + classes}, N), or list its classes in {file.path.stem}.names "
        "beside it",
    )


def _cells(file: OnnxFile, strides: tuple[int, ...]) -> int:
    return sum((file.height // stride) * (file.width // stride) for stride in strides)


def _scores_a_class(answers: Answers) -> Detections:
    rows = _rows(answers)[0].T
    return _best_class(rows[:, :4], rows[:, 4:])


def _objectness(answers: Answers) -> Detections:
    rows = _rows(answers)[0]
    return _best_class(rows[:, :4], rows[:, 5:] * rows[:, 4:5])


def _suppressed(answers: Answers) -> Detections:
    rows = _rows(answers).reshape(-1, 6)
    return Detections(rows[:, :4], _whole(rows[:, 5]), rows[:, 4])


def _suppressed_of_pictures(answers: Answers) -> Detections:
    rows = _rows(answers).reshape(-1, 7)
    return Detections(rows[:, 1:5], _whole(rows[:, 5]), rows[:, 6])


def _is_grid(shape: tuple[int, ...], classes: int) -> bool:
    return len(shape) == 4 and shape[:2] == (1, 5 + classes) and shape[2] == shape[3]


def _grid(answers: Answers, width: int, height: int) -> Detections:
    """Returns the box of each cell, row by row; its score is objectness^0.6 x class^0.4."""
    grid = _rows(answers)[0]
    # Powers of negative numbers would be NaN.
    objectness, classes = np.clip(grid[0], 0.0, 1.0), np.clip(grid[5:], 0.0, 1.0)
    scores = objectness**_OBJECTNESS_POWER * classes.max(axis=0) ** (1.0 - _OBJECTNESS_POWER)
    rows, columns = np.indices(scores.shape)
    centre = np.stack([columns + np.tanh(grid[1]), rows + np.tanh(grid[2])], axis=-1) / len(scores)
    # Half of the sigmoid of width and height.
    half = 0.5 / (1.0 + np.exp(-grid[3:5].transpose(1, 2, 0)))
    edges = np.concatenate([centre - half, centre + half], axis=-1).reshape(-1, 4)
    boxes = np.clip(edges, 0.0, 1.0) * [width, height, width, height]
    return Detections(
        boxes.astype(np.float32), grid[5:].argmax(axis=0).reshape(-1).astype(np.int64), scores.reshape(-1)
    )


def _rows(answers: Answers) -> _Rows:
    return np.asarray(next(iter(answers.values())), dtype=np.float32)


def _best_class(boxes: _Rows, scores: _Rows) -> Detections:
    """Returns detections from centres and sizes, and a score for each class."""
    half = boxes[:, 2:] / 2
    corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return Detections(corners, scores.argmax(axis=1).astype(np.int64), scores.max(axis=1))


def _queries(file: OnnxFile, answers: Answers, names: tuple[str, ...]) -> Callable[[Answers], Detections]:
    """Returns the decoder of the DETR family.

    Labels are indices of classes, or COCO's category numbers, which have gaps and reach to 90. To noise, a
    network answers its best 300 pairs of query and class, among them most classes: a label that is no index
    tells.
    """
    count = np.size(answers["scores"])
    expected = {"labels": (1, count), "boxes": (1, count, 4), "scores": (1, count)}
    shapes = {name: np.shape(value) for name, value in answers.items()}
    if shapes != expected:
        raise refused(
            file.path,
            ", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            "export it with labels (1, N), boxes (1, N, 4) and scores (1, N)",
        )
    highest = int(_whole(answers["labels"]).max(initial=-1))
    if highest < len(names):
        return partial(_labels_boxes_scores, class_of=np.arange(len(names)))
    if names == coco_names() and highest < len(CLASS_OF_CATEGORY):
        return partial(_labels_boxes_scores, class_of=CLASS_OF_CATEGORY)
    raise refused(
        file.path,
        f"class number {highest} where {len(names)} classes are known",
        f"list its classes in {file.path.stem}.names beside it, the first one for number 0",
    )


def _labels_boxes_scores(answers: Answers, class_of: NDArray[np.int64]) -> Detections:
    labels = _whole(answers["labels"]).reshape(-1)
    known = (labels >= 0) & (labels < len(class_of))
    return Detections(
        np.asarray(answers["boxes"], dtype=np.float32).reshape(-1, 4),
        # A label that is no class must not be an index.
        np.where(known, class_of[np.where(known, labels, 0)], -1),
        np.asarray(answers["scores"], dtype=np.float32).reshape(-1),
    )


def _whole(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Returns class numbers of any type as integers; -1 for what is none."""
    values = np.asarray(numbers, dtype=np.float64)
    # What a cast makes of a number that does not fit depends on the processor.
    return np.where(np.abs(values) < 2**31, values, -1.0).round().astype(np.int64)


def open_onnx(name: str, weights: Path | None, min_score: float) -> ObjectDetector:
    """Opens a detector from an ONNX file; its layout is determined by running it once.

    Args:
        name: of the detector, for errors.
        weights: the file. Its classes are those of ``names_of``.
        min_score: detections below are dropped.

    Raises:
        UserError: the file is missing, damaged, or has none of the supported layouts.
    """
    path = existing(name, weights)
    file = open_file(path)
    names = names_of(file)
    return OnnxDetector(file, names, layout_of(file, _tried(file), names), min_score)


@dataclass(slots=True, eq=False)
class OnnxDetector:
    """``ObjectDetector`` from an ONNX file. Suppression is class-wise; repeating it changes nothing."""

    file: OnnxFile
    names: tuple[str, ...]
    layout: Layout
    min_score: float
    _operations: int = 0

    def detect_objects(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image, at most 300."""
        height, width = image.shape[:2]
        picture, scale, border = self.layout.fit(image, self.file.height, self.file.width)
        with np.errstate(all="ignore"):  # Foreign answers may overflow; what is not finite is dropped.
            found = self.layout.decode(self.file.run(picture, (width, height)))
            boxes = ((found.boxes - np.tile(border, 2)) / np.tile(scale, 2)).astype(np.float32)
        placed = Detections(boxes, found.classes, found.scores)
        return suppressed(placed, width, height, len(self.names), self.min_score, self.layout.max_iou)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions; the same for every shape, as images are resized."""
        if not self._operations:
            self._operations = self.file.operations()
        return self._operations


def _tried(file: OnnxFile) -> Answers:
    """Returns the answers to noise, in which a network half sees objects of many classes."""
    noise = np.random.default_rng(0).random((3, file.height, file.width), np.float32)
    try:
        return file.run(noise, (file.width, file.height))
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise refused(
            file.path, f"nothing to a picture of noise ({str(error)[:160]})", "export it again"
        ) from error
