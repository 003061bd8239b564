"""A service's folder whose predictions are written by hand."""

from dataclasses import dataclass

import numpy as np

from ekya.core.records import FramePrediction
from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import HourWriter
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import record_start

CLASSES = ("car", "person", "background")
STARTED_US = 1_764_064_800_000_000
"""2025-11-25T10:00:00Z."""

FRAME_US = 100_000


@dataclass(frozen=True)
class Camera:
    """What a sink shows of a camera."""

    id: str
    state: str = "serving"
    accuracy: float | None = 0.874
    healthy: bool = True


def a_service(root):
    """Returns the folder of a service that was just started."""
    folder = RunFolder.create_numbered(root, "yard")
    record_start(folder, 0, STARTED_US)
    return folder


def a_message(frame, camera="cam"):
    """Returns a message as sinks get it."""
    return {
        "id": f"{camera}/{frame}",
        "camera": camera,
        "frame": frame,
        "time": "2025-11-25T10:00:00.000Z",
        "model": 1,
        "objects": [{"class": "Fußgänger", "confidence": 0.5, "box": [0.0, 1.0, 2.0, 3.0]}],
    }


def row(frame, analysed=True, followed=False, classes=(0,), version=3, confidence=2 / 3):
    """Returns a prediction; one that is neither analysed nor followed is answered by the frame before."""
    own = analysed or followed
    count = len(classes) if own else 0
    return FramePrediction(
        frame=frame,
        t_us=frame * FRAME_US,
        window=0,
        analysed=analysed,
        answered_by=frame if own else frame - 1,
        model_version=version,
        every=1,
        resolution=32,
        boxes=np.array([[1.26, 2, 30, 40.0]] * count, np.float32).reshape(-1, 4),
        classes=np.array(classes[:count], np.int16),
        confidence=np.full(count, confidence, np.float32),
    )


class Cameras:
    """Writes predictions of some streams; every second frame is skipped by λ."""

    def __init__(self, folder, *streams):
        self.writers = {StreamId(one): HourWriter(folder.hours(StreamId(one))) for one in streams}
        self.next = {stream: writer.next_frame() for stream, writer in self.writers.items()}

    def see(self, frames):
        """Writes so many frames of each stream; returns the ids of their messages, in order."""
        ids = []
        for stream, writer in self.writers.items():
            first = self.next[stream]
            for frame in range(first, first + frames):
                writer.add_row(row(frame, analysed=frame % 2 == 0))
            writer.flush()
            self.next[stream] += frames
            ids += [f"{stream}/{frame}" for frame in range(first, first + frames) if frame % 2 == 0]
        return ids
