"""Cameras that start from another camera's model: pairs, the gate, and what a run takes."""

import detect_start
import numpy as np
import pytest
from detect_start import Pair, halves_of, pairs_of, said, taken

from ekya.core.weights import Compared
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames

F1 = {"base": 0.3, "street": 0.7, "room": 0.2}
"""Of each model, on all frames."""


def clip(objects):
    """Returns frames of moving cars, this many in all but one frame for each."""
    boxes = [np.array([[0.1 * at, 0.1, 0.1 * at + 0.05, 0.2]], np.float32) for at in range(objects)]
    found = tuple(FrameObjects(box, np.zeros(1, np.int64), NOTHING.doubtful) for box in boxes)
    at = np.arange(objects, dtype=np.int64)
    return LabelledFrames(np.zeros((objects, 32, 32, 3), np.uint8), found, ("car",), at, at)


def pair(camera, of, base, at_once, passes, new=0.5):
    return Pair(camera, of, Compared(new, 0.2, 20), passes, base, at_once)


def test_halves_are_two_cameras():
    first, second = halves_of("street", clip(8)).items()
    assert (first[0], second[0]) == ("street 1", "street 2")
    assert (first[1].t_us.tolist(), second[1].t_us.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])


def test_pairs_need_enough_objects_and_a_clear_gain_to_pass(monkeypatch):
    monkeypatch.setattr(detect_start, "f1_of", lambda model, _frames: F1[model])
    parts = {"gate": (clip(9), clip(9)), "empty": (clip(3), clip(9))}
    pairs = pairs_of("base", {"gate": "base", "street": "street", "room": "room"}, parts)
    assert [(one.camera, one.of, one.passes) for one in pairs] == [
        ("gate", "street", True),
        ("gate", "room", False),
    ]
    assert (pairs[0].base, pairs[0].at_once, pairs[0].compared) == (0.3, 0.7, Compared(0.7, 0.3, 9))


def test_taken_is_the_best_that_passes_on_the_labels():
    pairs = [
        pair("a", "b", 0.2, 0.5, True, new=0.5),
        pair("a", "c", 0.2, 0.4, True, new=0.6),
        pair("a", "d", 0.2, 0.9, False, new=0.9),
        pair("b", "a", 0.2, 0.1, False),
    ]
    assert taken(pairs) == [pairs[1]]


@pytest.mark.parametrize(
    ("passes", "end"),
    [
        (True, "; the gate lets 1 pass, 1 of them better, by +30.0 to +30.0 points, +30.0 in the mean"),
        (False, "; the gate lets none pass"),
    ],
)
def test_said_counts_better_and_worse_pairs(passes, end):
    pairs = [pair("a", "b", 0.2, 0.5, passes), pair("b", "a", 0.4, 0.3, False)]
    assert said(pairs) == f"Of 2 pairs 1 are better and 1 worse, by -10.0 to +30.0 points{end}"
