"""Concave hulls of values by share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ekya.planning.schedulers.hull import concave_hulls

values = st.lists(st.integers(0, 20).map(lambda tenth: tenth / 10), min_size=2, max_size=9)


@given(values=values, data=st.data())
def test_hulls_are_concave_and_touch_values(values, data):
    floor = data.draw(st.integers(0, len(values) - 1))
    found = concave_hulls(np.array([values]), np.array([floor]))
    rises = [rise for rise in found.rise[0] if rise > 0]
    assert rises == sorted(rises, reverse=True)
    share, height = floor, values[floor]
    on_hull = {share: height}
    for size, rise in zip(found.size[0], found.rise[0], strict=True):
        for _ in range(size):
            share, height = share + 1, height + rise
            on_hull[share] = height
        assert abs(height - values[share]) < 1e-9
    assert abs(height - max(values[floor:])) < 1e-9
    assert all(on_hull[at] >= values[at] - 1e-9 for at in on_hull)
