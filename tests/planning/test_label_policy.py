"""Order of objects for labelling: laws and an example."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.planning.profiling.label_policy import LABEL_POLICIES, Candidates, affordable_count


@st.composite
def candidates(draw: st.DrawFn) -> Candidates:
    count = draw(st.integers(0, 12))
    drawn = np.random.default_rng(draw(st.integers(0, 5)))
    return Candidates(
        np.sort(drawn.integers(0, 4, count)),
        drawn.random(count).astype(np.float32),
        drawn.random((count, 3)).astype(np.float32),
    )


@pytest.mark.parametrize("name", LABEL_POLICIES)
@settings(max_examples=30)
@given(candidates(), st.integers(0, 3))
def test_order_holds_every_object_once_and_repeats(name: str, given_: Candidates, seed: int) -> None:
    policy = LABEL_POLICIES[name]
    order = policy.order(given_, np.random.default_rng(seed))
    again = policy.order(given_, np.random.default_rng(seed))
    assert sorted(order.rows.tolist()) == list(range(len(given_.pictures)))
    assert order.rows.tolist() == again.rows.tolist()
    assert (order.by_chance == again.by_chance).all()
    shown = order.pictures(given_).tolist()
    assert sorted(shown) == sorted(set(given_.pictures.tolist()))
    if shown:
        assert shown[0] == given_.pictures[order.rows[0]]


def test_uniform_order_is_a_permutation() -> None:
    nobody_asked = Candidates(np.zeros(9, np.int64), np.zeros(9, np.float32), np.zeros((9, 0), np.float32))
    order = LABEL_POLICIES["uniform"].order(nobody_asked, np.random.default_rng(4))
    assert order.rows.tolist() == np.random.default_rng(4).permutation(9).tolist()
    assert order.by_chance.all()


def test_uncertain_alternates_chance_and_informative() -> None:
    features = np.tile(np.array([[1.0, 0.0, 0.0]], np.float32), (40, 1))
    features[30] = [0, 1, 0]  # new
    features[31] = [0, 0, 1]  # new, and unsure
    confidence = np.full(40, 0.95, np.float32)
    confidence[31], confidence[32] = 0.4, 0.2
    given_ = Candidates(np.arange(40), confidence, features)
    checked = 0
    for seed in range(8):
        order = LABEL_POLICIES["uncertain"].order(given_, np.random.default_rng(seed))
        assert order.by_chance.tolist() == [True, False] * 20
        if not {30, 31, 32} & set(order.rows[:6:2].tolist()):
            assert order.rows[1:6:2].tolist() == [31, 30, 32]
            checked += 1
    assert checked > 3, "chance goes over all forty of them"


@given(st.floats(0.01, 10), st.integers(1, 50), st.integers(0, 60))
def test_affordable_is_what_fits_the_budget(one_gpu_s: float, count: int, most: int) -> None:
    fit = affordable_count(one_gpu_s * count, one_gpu_s, most)
    assert fit == min(count, most)
    assert affordable_count(one_gpu_s * (count - 0.5), one_gpu_s, most) == min(count - 1, most)
    assert affordable_count(None, one_gpu_s, most) == affordable_count(1.0, 0.0, most) == most
