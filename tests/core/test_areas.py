"""Tests of where objects count: masks and zones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.areas import WHOLE_PICTURE, Areas

PARTS = st.floats(0.0, 1.0, width=32)
POLYGON = st.lists(st.tuples(PARTS, PARTS), min_size=3, max_size=7).map(tuple)
POLYGONS = st.lists(POLYGON, min_size=1, max_size=3)
BOXES = st.lists(st.tuples(PARTS, PARTS, PARTS, PARTS), min_size=1, max_size=9)
LEFT = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))
BOTTOM = ((0.0, 0.6), (1.0, 0.6), (1.0, 1.0), (0.0, 1.0))
STAR = ((0.5, 0.0), (0.8, 1.0), (0.0, 0.4), (1.0, 0.4), (0.2, 1.0))


def standing_at(*feet):
    """Boxes whose lower edge has its middle at these points."""
    return np.array([(x - 0.1, y - 0.2, x + 0.1, y) for x, y in feet], np.float32).reshape(-1, 4)


@given(BOXES, POLYGONS)
def test_what_a_mask_takes_away_a_zone_of_the_same_shape_leaves(boxes, polygons):
    boxes, polygons = np.array(boxes, np.float32), tuple(polygons)
    masked = Areas(mask=polygons).find_counting(boxes)
    assert (masked != Areas(zone=polygons).find_counting(boxes)).all()
    assert not Areas(polygons, polygons).find_counting(boxes).any()
    # In pixels as in parts.
    in_pixels = Areas(mask=polygons).find_counting(boxes * np.float32(256), (256, 256))
    assert (in_pixels == masked).all()
    assert WHOLE_PICTURE.find_counting(boxes).all()


@given(BOXES, st.tuples(PARTS, PARTS), st.tuples(PARTS, PARTS))
def test_rectangle_holds_what_stands_between_its_edges(boxes, xs, ys):
    boxes, (x0, x1), (y0, y1) = np.array(boxes, np.float32), sorted(xs), sorted(ys)
    x = np.clip((boxes[:, 0] + boxes[:, 2]) / 2, 1e-6, 1 - 1e-6)
    y = np.clip(boxes[:, 3], 1e-6, 1 - 1e-6)
    # What stands on an edge, or next to it, may be on either side.
    near = np.abs([x - x0, x - x1, y - y0, y - y1]).min(axis=0) < 1e-6
    inside = (x0 < x) & (x < x1) & (y0 < y) & (y < y1)
    found = Areas(zone=(((x0, y0), (x1, y0), (x1, y1), (x0, y1)),)).find_counting(boxes)
    assert (found == inside)[~near].all()


@pytest.mark.parametrize(
    ("areas", "feet", "counts"),
    [
        (Areas(mask=(LEFT,)), [(0.4, 0.9), (0.6, 0.9)], [False, True]),
        # Only where it stands matters: the box of a car reaches far into the mask above it.
        (Areas(zone=(BOTTOM,)), [(0.5, 0.61), (0.5, 0.59)], [True, False]),
        # Boxes at the picture's edge are cut off there.
        (Areas(mask=(BOTTOM,)), [(0.5, 1.0), (1.0, 1.0), (0.0, 1.0)], [False, False, False]),
        (Areas(zone=(LEFT, BOTTOM), mask=(STAR,)), [(0.2, 0.2), (0.9, 0.9), (0.9, 0.2)], [True, True, False]),
        # Even-odd: the middle of a star is outside of it.
        (Areas(mask=(STAR,)), [(0.5, 0.6), (0.5, 0.2)], [True, False]),
    ],
)
def test_place_where_an_object_stands_decides(areas, feet, counts):
    assert areas.find_counting(standing_at(*feet)).tolist() == counts


@pytest.mark.parametrize(
    "areas",
    [
        Areas(mask=(LEFT, ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0)))),
        Areas(mask=(LEFT,), zone=(((0.1, 0.1), (0.4, 0.1), (0.4, 0.9)),)),
        Areas(zone=(((0.1, 0.1), (0.4, 0.4), (0.9, 0.9)),)),
    ],
)
def test_areas_that_leave_nothing_are_refused(areas):
    with pytest.raises(ValueError, match="nowhere in the picture would an object count; leave"):
        areas.require_some_part()
    Areas(areas.mask[:1]).require_some_part()
