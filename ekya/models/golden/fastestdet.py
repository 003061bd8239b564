"""FastestDet: a small COCO detector as an ONNX file, run by OpenCV.

The network takes 352 x 352 pixels, BGR in [0, 1], and returns a grid of n x n cells. The channels of a cell
are objectness, the offset of the box's centre in cells (through tanh), the box's width and height as a
fraction of the image (through a sigmoid), and one probability per class.
"""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.models.golden.checksum import existing
from ekya.models.golden.class_map import coco_names, listed_names
from ekya.models.golden.detections import Detections
from ekya.models.golden.nms import suppressed

_SIDE = 352
_BOX_CHANNELS = 5
_OBJECTNESS_POWER = 0.6
_MAX_IOU = 0.45
_NAMES_FILE = "coco.names"


def open_fastestdet(name: str, weights: Path | None, min_score: float) -> "FastestDet":
    """Opens the detector.

    Raises:
        UserError: as ``FastestDet``, or no file is named.
    """
    return FastestDet(existing(name, weights), min_score)


class FastestDet:
    """``Detector`` that runs FastestDet. Not thread-safe."""

    def __init__(self, path: Path, min_score: float = 0.6) -> None:
        """Load the network and test it once.

        Args:
            path: the ONNX file; names of classes are read from ``coco.names`` beside it, if present.
            min_score: detections below are dropped.

        Raises:
            UserError: the file is missing, damaged, or of another network.
        """
        self._path = path
        self._min_score = min_score
        beside = path.with_name(_NAMES_FILE)
        self.names = listed_names(beside) if beside.is_file() else coco_names()
        """Names of its classes: those in ``coco.names`` beside the file, or COCO's 80."""
        self._operations = 0
        try:
            self._net = cv2.dnn.readNetFromONNX(str(path))
            shape = self._forward(np.zeros((_SIDE, _SIDE, 3), dtype=np.uint8)).shape
        except cv2.error as error:
            raise UserError(
                f"{path}: no ONNX network that OpenCV can run, named by the key 'weights' "
                f"({_first_line(error)}); download it again."
            ) from error
        channels = _BOX_CHANNELS + len(self.names)
        if len(shape) != 3 or shape[0] != channels or shape[1] != shape[2]:
            raise UserError(
                f"{path}: answers {shape} where FastestDet answers ({channels}, n, n), named by the key "
                "'weights'; give a FastestDet ONNX file."
            )

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image, at most 300; class-wise suppression."""
        height, width = image.shape[:2]
        with np.errstate(all="ignore"):  # Foreign weights may overflow; what is not finite is dropped.
            found = decode(self._forward(image), width, height, self._min_score)
        return suppressed(found, width, height, len(self.names), self._min_score, _MAX_IOU)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions; the same for every shape, as images are resized."""
        if not self._operations:
            self._operations = _count_operations(self._path)
        return self._operations

    def _forward(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        self._net.setInput(cv2.dnn.blobFromImage(image, 1 / 255, (_SIDE, _SIDE)))
        answer: NDArray[np.float32] = np.asarray(self._net.forward(), dtype=np.float32)[0]
        return answer


def decode(grid: NDArray[np.float32], width: int, height: int, min_score: float) -> Detections:
    """Converts the network's output into boxes, before suppression.

    Args:
        grid: (5 + classes, n, n).
        width, height: of the image, pixels.
        min_score: exclusive lower bound of objectness^0.6 x class^0.4.

    Returns:
        Detections in the order of the cells.
    """
    cells = grid.shape[2]
    best = grid[_BOX_CHANNELS:].max(axis=0)
    score = np.clip(grid[0], 0.0, 1.0) ** _OBJECTNESS_POWER * np.clip(best, 0.0, 1.0) ** (
        1.0 - _OBJECTNESS_POWER
    )
    rows, columns = np.nonzero(score > min_score)
    chosen = grid[:, rows, columns]
    centre_x = (columns + np.tanh(chosen[1])) / cells * width
    centre_y = (rows + np.tanh(chosen[2])) / cells * height
    half_width = _sigmoid(chosen[3]) * width / 2
    half_height = _sigmoid(chosen[4]) * height / 2
    edges = (centre_x - half_width, centre_y - half_height, centre_x + half_width, centre_y + half_height)
    boxes = np.clip(np.stack(edges, axis=1), 0.0, [width, height, width, height])
    return Detections(
        boxes.astype(np.float32),
        chosen[_BOX_CHANNELS:].argmax(axis=0).astype(np.int64),
        score[rows, columns].astype(np.float32),
    )


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(1.0 / (1.0 + np.exp(-x)), dtype=np.float32)


def _count_operations(path: Path) -> int:
    """Returns the multiplications and additions of all convolutions; the network has no other products.

    OpenCV's own count cannot be called from Python in its version 5, so the outputs of the layers are
    computed once. Only the classic engine exposes its layers' weights; version 4 has no other.
    """
    engine = getattr(cv2.dnn, "ENGINE_CLASSIC", None)
    net = cv2.dnn.readNetFromONNX(str(path)) if engine is None else cv2.dnn.readNetFromONNX(str(path), engine)
    layers = {name: net.getLayer(net.getLayerId(name)) for name in net.getLayerNames()}
    convolutions = {name: layer for name, layer in layers.items() if layer.type == "Convolution"}
    net.setInput(np.zeros((1, 3, _SIDE, _SIDE), dtype=np.float32))
    outputs = net.forward(list(convolutions))
    total = 0
    for layer, output in zip(convolutions.values(), outputs, strict=True):
        kernel = np.shape(layer.blobs[0])
        total += 2 * np.size(output) * int(np.prod(kernel[1:]))
    return total


def _first_line(error: cv2.error) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "unknown cause")
