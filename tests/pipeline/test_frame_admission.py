"""Tests of the rule by which frames are analysed, followed or passed over."""

import pytest

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_after, is_due_in_order

EDGE, GOLDEN = InferenceConfig(3, 32), InferenceConfig(3, GOLDEN_RESOLUTION)


def test_frames_that_are_all_offered_are_due_at_the_beginning_of_every_block():
    assert [frame for frame in range(10) if is_due_in_order(frame, 3)] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("offered", "due"),
    [(range(10), [0, 3, 6, 9]), ([1, 2, 5, 6, 8, 12], [1, 5, 6, 12]), ([7, 8, 9], [7, 9])],
)
def test_newest_frames_are_due_once_in_every_block(offered, due):
    analysed, found = -1, []
    for frame in offered:
        if is_due_after(analysed, frame, 3):
            analysed = frame
            found.append(frame)
    assert found == due


@pytest.mark.parametrize(
    ("config", "due", "due_frame_waits", "way"),
    [
        (EDGE, True, False, FrameWay.ANALYSE),
        (EDGE, True, True, FrameWay.ANALYSE),
        (EDGE, False, False, FrameWay.PASS_OVER),
        (GOLDEN, True, True, FrameWay.ANALYSE),
        (GOLDEN, False, False, FrameWay.FOLLOW),
        (GOLDEN, False, True, FrameWay.PASS_OVER),
    ],
)
def test_frames_that_the_golden_detector_skips_are_followed_unless_late(config, due, due_frame_waits, way):
    assert choose_way(config, due, due_frame_waits) is way
