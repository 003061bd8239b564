"""Objects read from a detector's boxes: laws that hold for whatever the network answers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ekya.core.objects import SURE, iou_matrix
from ekya.models.edge.detection import read_objects as suppress
from ekya.models.edge.detection.detector import Decoded
from ekya.models.edge.detection.read_objects import (
    LEAST_CONFIDENCE,
    MOST_OBJECTS,
    BoxCandidates,
    Found,
    calibrated,
    found_in,
)
from ekya.models.golden.detections import nms

IN_FLEET = np.array([1, -1, 0, 0], np.int64)
ANY = st.floats(width=32) | st.floats(-0.5, 1.5, width=32)


@st.composite
def candidates(draw: st.DrawFn) -> BoxCandidates:
    count = draw(st.integers(0, 12))
    return BoxCandidates(
        draw(arrays.arrays(np.float32, (1, count, 4), elements=ANY)),
        draw(arrays.arrays(np.float32, (1, count), elements=ANY)),
        draw(arrays.arrays(np.int64, (1, count), elements=st.integers(0, len(IN_FLEET) - 1))),
    )


def check(found: Found) -> None:
    assert len(found.boxes) == len(found.classes) == len(found.confidence) <= MOST_OBJECTS
    assert ((found.boxes >= 0) & (found.boxes <= 1)).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    assert ((found.confidence >= LEAST_CONFIDENCE) & (found.confidence <= 1)).all()
    assert (np.diff(found.confidence) <= 0).all()
    assert set(found.classes.tolist()) <= {0, 1}
    alike = found.classes[:, None] == found.classes[None]
    rivals = iou_matrix(found.boxes, found.boxes) * alike
    np.fill_diagonal(rivals, 0.0)
    assert (rivals <= 0.45).all()


@given(candidates())
def test_found_objects_are_valid_whatever_a_network_answers(given_: BoxCandidates) -> None:
    (found,) = found_in(given_, IN_FLEET)
    check(found)
    good = (
        np.isfinite(given_.boxes[0]).all(axis=1)
        & (given_.scores[0] >= LEAST_CONFIDENCE)
        & (given_.scores[0] < np.inf)
        & (IN_FLEET[given_.outputs[0]] >= 0)
        & (np.clip(given_.boxes[0, :, 2:], 0, 1) > np.clip(given_.boxes[0, :, :2], 0, 1)).all(axis=1)
    )
    assert bool(len(found.boxes)) == bool(good.any()), "the best usable box is always found"


@given(candidates(), st.floats(0.05, 0.95))
def test_found_objects_with_a_threshold_are_sure_from_it_on(given_: BoxCandidates, threshold: float) -> None:
    (found,) = found_in(given_, IN_FLEET, threshold)
    check(found)
    scores = given_.scores[0]
    clearly = scores[np.isfinite(scores) & (np.abs(scores - threshold) > 1e-3)]
    assert ((calibrated(clearly, threshold) >= SURE) == (clearly > threshold)).all()


@given(candidates(), candidates())
def test_found_objects_do_not_depend_on_other_images(one: BoxCandidates, other: BoxCandidates) -> None:
    count = min(one.scores.shape[1], other.scores.shape[1])
    both = BoxCandidates(
        np.concatenate([one.boxes[:, :count], other.boxes[:, :count]]),
        np.concatenate([one.scores[:, :count], other.scores[:, :count]]),
        np.concatenate([one.outputs[:, :count], other.outputs[:, :count]]),
    )
    alone = BoxCandidates(one.boxes[:, :count], one.scores[:, :count], one.outputs[:, :count])
    (expected,), (found, _) = found_in(alone, IN_FLEET), found_in(both, IN_FLEET)
    np.testing.assert_array_equal(found.boxes, expected.boxes)
    np.testing.assert_array_equal(found.confidence, expected.confidence)


@pytest.mark.parametrize("seed", range(3))
def test_of_thousands_of_sure_boxes_few_are_compared(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(suppress, "nms", lambda boxes, *of: compared.append(len(boxes)) or nms(boxes, *of))
    rng = np.random.default_rng(seed)
    low = rng.random((1, 50_000, 2), np.float32)
    boxes = np.concatenate([low, low + 0.1], axis=2)
    sure = BoxCandidates(boxes, np.ones((1, 50_000), np.float32), rng.integers(0, 4, (1, 50_000)))
    (found,) = found_in(sure, IN_FLEET)
    assert compared == [300]
    check(found)
    assert len(found.boxes) > 10


def test_no_images_and_images_without_boxes_have_no_objects() -> None:
    def empty(images: int) -> BoxCandidates:
        none = np.zeros((images, 0, 4), np.float32)
        return BoxCandidates(none, none[..., 0], none[..., 0].astype(np.int64))

    assert found_in(empty(0), IN_FLEET) == []
    assert [len(found.boxes) for found in found_in(empty(2), IN_FLEET)] == [0, 0]


def test_decoded_box_is_of_its_best_class() -> None:
    scores = torch.tensor([[[0.1, 0.7, 0.2], [0.9, 0.3, 0.4]]])
    of = BoxCandidates.of(Decoded.of(torch.zeros(1, 2, 4), scores))
    assert of.outputs.tolist() == [[1, 0]]
    np.testing.assert_allclose(of.scores, [[0.7, 0.9]])
