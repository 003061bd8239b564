"""Counts a stream's frames per window, due and analysed."""

from ekya.core.records import FramePrediction
from ekya.measuring.health import FrameCount


class FrameTally:
    """Counts the frames of one window at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._window = 0
        self._count = FrameCount()

    def add(self, row: FramePrediction) -> tuple[int, FrameCount] | None:
        """Counts a frame; at the first of a window, returns the unreported count of the one before."""
        told = self.take() if row.window != self._window else None
        self._window = row.window
        self._count += FrameCount(int(row.frame % row.every == 0), int(row.analysed))
        return told

    def take(self) -> tuple[int, FrameCount] | None:
        """Returns a window and its frames since the last call; None if there were none."""
        count, self._count = self._count, FrameCount()
        return (self._window, count) if count != FrameCount() else None
