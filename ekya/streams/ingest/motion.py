"""Finds moving regions in the pictures of a fixed camera by background subtraction."""

from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

_NO_BOXES = np.zeros((0, 4), dtype=np.float32)
_FOREGROUND = 255  # MOG2 marks shadows with 127, which do not count.


@dataclass(eq=False)
class MotionRegions:
    """Boxes around moving objects, from a background learnt frame by frame on a small copy of the picture.

    Attributes:
        work_side: longest side of the copy, pixels.
        min_part, max_part: least and greatest area of a region, as a part of the picture. A
            region that is the whole picture is a change of light or of scene, not an object.
        warm_up: number of first frames from which only the background is learnt.
        history: number of frames in the background model.
    """

    work_side: int = 240
    min_part: float = 0.0015
    max_part: float = 0.25
    warm_up: int = 15
    history: int = 200
    _background: cv2.BackgroundSubtractor | None = field(default=None, init=False)
    _shape: tuple[int, int] = field(default=(0, 0), init=False)
    _seen: int = field(default=0, init=False)

    def update(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Learns one frame and returns its moving regions.

        Args:
            image: (H, W, 3) uint8, BGR. A change of size starts a new background.

        Returns:
            (N, 4) float32, x0 y0 x1 y1 in pixels of ``image``; touching regions are merged.
        """
        height, width = image.shape[:2]
        if self._background is None or self._shape != (height, width):
            self._background = cv2.createBackgroundSubtractorMOG2(self.history, 16.0, True)
            self._shape = (height, width)
            self._seen = 0
        scale = min(1.0, self.work_side / max(height, width))
        small = cv2.resize(image, (max(1, round(width * scale)), max(1, round(height * scale))))
        mask = self._background.apply(small)
        self._seen += 1
        if self._seen <= self.warm_up:
            return _NO_BOXES
        return self._regions(np.asarray(mask, dtype=np.uint8), width, height)

    def _regions(self, mask: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float32]:
        """Returns boxes of the foreground, after specks are removed and near pieces are joined."""
        moving = cv2.morphologyEx(
            (mask == _FOREGROUND).astype(np.uint8), cv2.MORPH_OPEN, np.ones((2, 2), dtype=np.uint8)
        )
        moving = cv2.dilate(moving, np.ones((7, 7), dtype=np.uint8))
        count, _, stats, _ = cv2.connectedComponentsWithStats(moving)
        if count < 2:
            return _NO_BOXES
        stats = np.asarray(stats[1:], dtype=np.float32)
        # The dilation added three pixels on each side.
        area = (stats[:, cv2.CC_STAT_WIDTH] - 6.0) * (stats[:, cv2.CC_STAT_HEIGHT] - 6.0)
        part = area / mask.size
        stats = stats[(part >= self.min_part) & (part <= self.max_part)]
        low, size = stats[:, :2], stats[:, 2:4]
        boxes = np.concatenate([low + 3.0, low + np.maximum(size - 3.0, 4.0)], axis=1)
        boxes *= np.asarray([width / mask.shape[1], height / mask.shape[0]] * 2, dtype=np.float32)
        return np.asarray(np.clip(boxes, 0.0, [width, height, width, height]), dtype=np.float32)
