"""Reading from OpenCV's decoders, which answer in several ways that there is no picture."""

import cv2
import numpy as np
from numpy.typing import NDArray


def read_picture(capture: cv2.VideoCapture) -> NDArray[np.uint8] | None:
    """The next picture, (H, W, 3) BGR, waited for; None at the end, at damage or where the camera is lost."""
    try:
        decoded, image = capture.read()
    except cv2.error:
        return None
    if not decoded or image is None or image.ndim != 3:
        return None
    return np.asarray(image, dtype=np.uint8)
