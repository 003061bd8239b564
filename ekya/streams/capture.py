"""Reads pictures from OpenCV's decoders, which report a missing picture in several ways."""

import cv2
import numpy as np
from numpy.typing import NDArray


def read_picture(capture: cv2.VideoCapture) -> NDArray[np.uint8] | None:
    """Waits for the next picture, (H, W, 3) BGR; None at the end, at damage or if the camera is lost."""
    try:
        decoded, image = capture.read()
    except cv2.error:
        return None
    if not decoded or image is None or image.ndim != 3:
        return None
    return np.asarray(image, dtype=np.uint8)
