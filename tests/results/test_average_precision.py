import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.results.metrics.detection_accuracy import average_precisions


def average_precision(ranked: list[bool], objects: int) -> float:
    """Returns that of predictions in falling confidence."""
    confidence = np.linspace(1, 0, len(ranked), dtype=np.float32)
    group = np.zeros(len(ranked), np.int64)
    return float(average_precisions(np.array([objects]), group, confidence, np.array(ranked, np.bool_))[0])


def test_average_precision_of_three_predictions() -> None:
    # Recall 1/2 at precision 1 (51 of the 101 recalls), recall 1 at precision 2/3 (the other 50).
    assert average_precision([True, False, True], 2) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_missed_objects_cost_their_part_of_the_recalls() -> None:
    assert average_precision([True, True], 3) == pytest.approx(67 / 101)
    assert average_precision([], 3) == 0.0


def test_precision_is_the_best_from_a_recall_on() -> None:
    assert average_precision([False, True, True], 2) == pytest.approx(2 / 3)


def test_groups_are_ranked_apart_and_one_without_objects_has_none() -> None:
    found = average_precisions(
        np.array([1, 0, 2]),
        np.array([2, 0, 1, 0, 2]),
        np.array([0.2, 0.3, 0.9, 0.8, 0.1], np.float32),
        np.array([True, True, False, False, True]),
    )
    np.testing.assert_allclose(found, [0.5, np.nan, 1.0])


def test_equal_confidences_rank_in_their_order() -> None:
    same = np.full(2, 0.5, np.float32)
    group = np.zeros(2, np.int64)
    first = average_precisions(np.array([1]), group, same, np.array([True, False]))
    second = average_precisions(np.array([1]), group, same, np.array([False, True]))
    assert (first[0], second[0]) == (1.0, 0.5)


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 120))
def test_average_precision_equals_definition(ranked: list[bool], missed: int) -> None:
    objects = sum(ranked) + missed
    if not objects:
        return
    points = [(sum(ranked[:end]), end) for end in range(1, len(ranked) + 1)]
    best = [
        max((hits / end for hits, end in points if 100 * hits >= k * objects), default=0.0)
        for k in range(101)
    ]
    assert average_precision(ranked, objects) == pytest.approx(sum(best) / 101)
