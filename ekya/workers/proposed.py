"""Objects that were found but not yet classified."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """A frame and its objects, not yet classified.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        boxes: (N, 4) float32.
        crops: (N, S, S, 3) uint8 RGB.
    """

    frame: int
    t_us: int
    boxes: NDArray[np.float32]
    crops: NDArray[np.uint8]
