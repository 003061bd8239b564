import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ekya.core.objects import Matches, match_image

Box = tuple[float, float, float, float]
Predicted = tuple[Box, int, float]
Object = tuple[Box, int]

LEFT = (0.0, 0.0, 10.0, 10.0)
NEAR = (2.0, 0.0, 12.0, 10.0)  # IoU with LEFT is 8 / 12
BETWEEN = (1.0, 0.0, 11.0, 10.0)  # 9 / 11 with both
HALF = (0.0, 0.0, 10.0, 5.0)  # exactly 1 / 2 with LEFT
FAR = (50.0, 0.0, 60.0, 10.0)


def match(predicted: list[Predicted], objects: list[Object], doubtful: list[Box]) -> Matches:
    return match_image(
        np.array([box for box, _, _ in predicted], np.float32).reshape(-1, 4),
        np.array([label for _, label, _ in predicted], np.int16),
        np.array([confidence for _, _, confidence in predicted], np.float32),
        np.array([box for box, _ in objects], np.float32).reshape(-1, 4),
        np.array([label for _, label in objects], np.int16),
        np.array(doubtful, np.float32).reshape(-1, 4),
    )


def test_confident_prediction_chooses_first() -> None:
    matches = match([(NEAR, 0, 0.6), (LEFT, 0, 0.9), (LEFT, 1, 0.9)], [(LEFT, 0)], [])
    assert matches.object.tolist() == [-1, 0, -1]
    assert matches.hit.tolist() == [False, True, False]
    assert not matches.ignored.any()


def test_prediction_takes_the_object_it_overlaps_most() -> None:
    matches = match([(NEAR, 0, 0.9), (LEFT, 0, 0.8)], [(LEFT, 0), (NEAR, 0)], [])
    assert matches.object.tolist() == [1, 0]


def test_prediction_whose_object_is_taken_takes_the_next_best() -> None:
    matches = match([(LEFT, 0, 0.9), (LEFT, 0, 0.8)], [(LEFT, 0), (NEAR, 0)], [])
    assert matches.object.tolist() == [0, 1]


def test_ties_go_to_the_lower_index() -> None:
    matches = match([(BETWEEN, 0, 0.9), (BETWEEN, 0, 0.9)], [(NEAR, 0), (LEFT, 0)], [])
    assert matches.object.tolist() == [0, 1]


def test_overlap_of_half_is_enough() -> None:
    assert match([(HALF, 0, 0.9)], [(LEFT, 0)], []).hit.all()


def test_doubtful_box_excuses_predictions_of_any_class_without_object() -> None:
    matches = match(
        [(LEFT, 0, 0.9), (NEAR, 0, 0.8), (NEAR, 1, 0.7), (FAR, 0, 0.9)], [(LEFT, 0)], [LEFT, NEAR]
    )
    assert matches.hit.tolist() == [True, False, False, False]
    assert matches.ignored.tolist() == [False, True, True, False]


def test_empty_sides_match_nothing() -> None:
    assert match([], [(LEFT, 0)], [FAR]).object.tolist() == []
    assert match([(LEFT, 0, 0.9)], [], []).object.tolist() == [-1]
    assert match([((5.0, 5.0, 5.0, 5.0), 0, 0.9)], [((5.0, 5.0, 5.0, 5.0), 0)], []).object.tolist() == [-1]


def test_not_a_number_matches_nothing_and_raises_nothing() -> None:
    nan = float("nan")
    matches = match([((nan, 0.0, 10.0, 10.0), 0, 0.9), (LEFT, 0, nan), (NEAR, 0, 0.1)], [(LEFT, 0)], [])
    assert matches.object.tolist() == [-1, -1, 0]


def plain_iou(a: Box, b: Box) -> float:
    inter = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter
    return inter / union


def by_loops(
    predicted: list[Predicted], objects: list[Object], doubtful: list[Box]
) -> tuple[list[int], list[bool]]:
    """The definition of matching, one prediction after the other."""
    taken = [-1] * len(predicted)
    for index in sorted(range(len(predicted)), key=lambda i: (-predicted[i][2], i)):
        box, label, _ = predicted[index]
        best = 0.0
        for at, (other, of_class) in enumerate(objects):
            overlap = plain_iou(box, other)
            if of_class == label and overlap >= 0.5 and at not in taken and overlap > best:
                taken[index], best = -2, overlap
                chosen = at
        if taken[index] == -2:
            taken[index] = chosen
    ignored = [
        mine == -1 and any(plain_iou(box, other) >= 0.5 for other in doubtful)
        for mine, (box, _, _) in zip(taken, predicted, strict=True)
    ]
    return taken, ignored


crowded = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(2, 6), st.integers(2, 4)).map(
    lambda v: (float(v[0]), float(v[1]), float(v[0] + v[2]), float(v[1] + v[3]))
)
label = st.integers(0, 1)


@given(
    st.lists(st.tuples(crowded, label, st.sampled_from([0.1, 0.5, 0.6, 0.9])), max_size=12),
    st.lists(st.tuples(crowded, label), max_size=8),
    st.lists(crowded, max_size=3),
)
# Each of these wants the object that the one before it takes: one round for each.
@example(
    [((float(i), 0.0, i + 10.0, 10.0), 0, 0.9 - i / 100) for i in range(9)],
    [((i + 0.6, 0.0, i + 10.6, 10.0), 0) for i in range(-1, 9)],
    [],
)
def test_matching_of_crowded_image_equals_definition(
    predicted: list[Predicted], objects: list[Object], doubtful: list[Box]
) -> None:
    matches = match(predicted, objects, doubtful)
    assert (matches.object.tolist(), matches.ignored.tolist()) == by_loops(predicted, objects, doubtful)
