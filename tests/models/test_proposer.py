"""Tests of a detector that runs on every n-th frame while its boxes are tracked in between."""

import numpy as np
import pytest
from pydantic import ValidationError

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import ON_CPU, Detections
from ekya.models.proposer import DetectorAndMotion, ObjectsSpec
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow

SIDE = 40


def picture(at):
    """Draws a patch that moves four pixels a frame over a street that moves three the other way."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 200, (60, 80, 1)).astype(np.uint8)
    street = np.repeat(blocks.repeat(4, axis=0).repeat(4, axis=1), 3, axis=2)
    patch = rng.integers(55, 256, (SIDE // 4, SIDE // 4, 1)).astype(np.uint8)
    scene = np.roll(street, -3 * at, axis=1)
    scene[80 : 80 + SIDE, 40 + 4 * at : 40 + SIDE + 4 * at] = np.kron(patch, np.ones((4, 4, 3), np.uint8))
    return scene


def where(at):
    return np.array([[40 + 4 * at, 80, 40 + SIDE + 4 * at, 80 + SIDE]], np.float32)


class Watching:
    """Fake detector that finds the patch and records its calls."""

    names = ("car",)
    runs_on = ON_CPU

    def __init__(self):
        self.asked = []
        self.at = 0

    def detect_objects(self, image):
        self.asked.append(self.at)
        return Detections(where(self.at), np.zeros(1, np.int64), np.ones(1, np.float32))

    def operations_per_frame(self, shape):
        return 1_000_000_000


class Moving:
    """Fake background model: a large region on the left moves, and a small one on the right."""

    def find_regions(self, image):
        return np.array([[0, 200, 30, 230], [200, 200, 210, 210]], np.float32)


def watched(proposer, count=9, areas=WHOLE_PICTURE):
    proposals = []
    for at in range(count):
        proposer.detector.at = at
        proposals.append(proposer.propose_boxes(Frame(at, at, picture(at), None, areas)))
    return proposals


@pytest.mark.parametrize("every", [1, 2, 4])
def test_proposer_every_n_detects_every_nth_frame_and_tracks_between(every):
    proposer = DetectorAndMotion(Watching(), None, every=every)
    proposals = watched(proposer)
    assert proposer.detector.asked == list(range(0, 9, every))
    for at, one in enumerate(proposals):
        assert iou_matrix(one.boxes, where(at)).max() > 0.75
        assert (one.found is not None) == (at % every == 0), "only the detector's own pictures are known"


@pytest.mark.parametrize("every", [1, 3])
def test_proposer_proposes_nothing_that_does_not_count(every):
    """A mask on the left, which the patch leaves; what moves there takes the place of nothing else."""
    left = Areas(mask=(((0.0, 0.0), (0.26, 0.0), (0.26, 1.0), (0.0, 1.0)),))
    proposer = DetectorAndMotion(Watching(), Moving(), every=every, max_moving=1)
    for at, one in enumerate(watched(proposer, areas=left)):
        boxes = one.boxes[one.boxes[:, 3] < 200]
        assert len(boxes) == (at > 5), at
        assert one.boxes[len(boxes) :].tolist() == [[200, 200, 210, 210]]


def test_proposer_tracked_frame_costs_less():
    every = DetectorAndMotion(Watching(), None)
    third = DetectorAndMotion(Watching(), None, every=3)
    shape = picture(0).shape
    assert {one.count_operations() for one in watched(every)} == {every.operations(shape)} == {1_000_000_000}
    costs = [one.count_operations() for one in watched(third)]
    assert costs[0] == costs[3] == 1_000_000_000
    assert 0 < costs[1] == BoxFlow().count_operations(shape, 1) < 100_000_000
    assert third.operations(shape) == pytest.approx(np.mean(costs), rel=0.2)


def test_proposer_new_picture_size_is_detected_immediately():
    proposer = DetectorAndMotion(Watching(), None, every=4)
    watched(proposer, 2)
    assert proposer.propose_boxes(Frame(2, 2, picture(2)[:150], None)).found is not None


def test_proposer_moving_camera_has_no_moving_regions():
    still, moving = DetectorAndMotion(Watching()), DetectorAndMotion(Watching(), None)
    assert max(len(one.boxes) for one in watched(still, 25)) > 1
    assert {len(one.boxes) for one in watched(moving, 25)} == {1}


def test_objects_spec_reads_method_and_interval():
    assert ObjectsSpec() == ObjectsSpec.model_validate({"find": "detector+motion", "every": 1})
    assert ObjectsSpec.model_validate({"find": "detector", "every": 5}).every == 5
    for wrong in ({"find": "magic"}, {"every": 0}, {"every": 31}, {"n": 2}):
        with pytest.raises(ValidationError):
            ObjectsSpec.model_validate(wrong)
