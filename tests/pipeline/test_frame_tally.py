import numpy as np

from ekya.core.records import FramePrediction
from ekya.pipeline.frame_costs import FrameTally
from ekya.results.metrics.health import FrameCount


def row(frame, window, analysed, every=1):
    nothing = np.zeros(0)
    return FramePrediction(
        frame,
        frame,
        window,
        analysed,
        -1,
        0,
        every,
        32,
        np.zeros((0, 4), np.float32),
        nothing.astype(np.int16),
        nothing.astype(np.float32),
    )


def test_frames_are_told_once_and_never_of_two_windows_together():
    tally = FrameTally()
    assert tally.take() is None
    assert [tally.add(row(frame, 0, frame % 2 == 0)) for frame in range(4)] == [None] * 4
    assert tally.take() == (0, FrameCount(4, 2))
    assert tally.take() is None
    assert tally.add(row(4, 0, True)) is None
    assert tally.add(row(5, 1, False)) == (0, FrameCount(1, 1))
    assert tally.add(row(6, 1, True, every=3)) is None
    assert tally.add(row(7, 1, False, every=3)) is None
    assert tally.take() == (1, FrameCount(2, 1))
