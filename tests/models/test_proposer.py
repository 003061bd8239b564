"""Tests of boxes that a detector proposes."""

import numpy as np

from ekya.core.areas import Areas
from ekya.models.golden.detections import ON_CPU, Detections
from ekya.models.proposer import MAX_BOXES, DetectedBoxes
from ekya.streams.ingest.frame import Frame

IMAGE = np.zeros((240, 320, 3), np.uint8)


class Scripted:
    """Fake detector that finds given rows (box, class, score)."""

    names = ("car", "person", "kite")
    runs_on = ON_CPU

    def __init__(self, *rows):
        boxes, classes, scores = zip(*rows, strict=True)
        self.found = Detections(
            np.array(boxes, np.float32), np.array(classes, np.int64), np.array(scores, np.float32)
        )

    def detect_objects(self, image):
        return self.found

    def operations_per_frame(self, shape):
        return 20_000


def test_proposer_gives_one_box_of_an_object_whatever_its_class():
    detector = Scripted(([10, 10, 50, 50], 0, 0.9), ([11, 10, 50, 50], 1, 0.5), ([120, 60, 180, 90], 2, 0.45))
    proposals = DetectedBoxes(detector).propose_boxes(Frame(0, 0, IMAGE, None))
    assert proposals.boxes.tolist() == [[10, 10, 50, 50], [120, 60, 180, 90]]
    assert proposals.found is detector.found
    assert proposals.count_operations() == DetectedBoxes(detector).operations(IMAGE.shape) == 20_000


def test_proposer_too_many_boxes_keeps_the_most_confident():
    rows = [([12.0 * i, 0, 12.0 * i + 10, 10], 0, 0.99 - 0.01 * i) for i in range(40)]
    boxes = DetectedBoxes(Scripted(*rows)).propose_boxes(Frame(0, 0, IMAGE, None)).boxes
    assert len(boxes) == MAX_BOXES
    assert boxes[:, 0].tolist() == [12.0 * i for i in range(MAX_BOXES)]


def test_proposer_proposes_nothing_that_does_not_count():
    """A mask on the left; what lies in it takes the place of nothing else."""
    left = Areas(mask=(((0.0, 0.0), (0.26, 0.0), (0.26, 1.0), (0.0, 1.0)),))
    rows = [([2.0 * i, 0, 2.0 * i + 1, 10], 0, 0.9) for i in range(30)]
    proposer = DetectedBoxes(Scripted(*rows, ([200, 200, 210, 210], 0, 0.5)))
    assert proposer.propose_boxes(Frame(0, 0, IMAGE, None, left)).boxes.tolist() == [[200, 200, 210, 210]]
