"""The recipe on the matrix of cameras: its anchors, and what a trial of many objects comes to."""

import numpy as np
import pytest
from zoo_matrix import anchors, read_matrix, served_by

from ekya.core.errors import UserError

SCORES = np.full((5, 5), 0.1) + 0.4 * np.eye(5)
SCORES[0, 1:] = 0.3


def test_anchors_are_own_random_and_best_other():
    own, random, best = anchors(SCORES)
    assert (own, best) == pytest.approx((0.5, (0.1 + 4 * 0.3) / 5))
    assert random == pytest.approx((4 * 0.3 + 16 * 0.1) / 20)


@pytest.mark.parametrize("rule", ["kept", "12 points", "best"])
def test_served_by_many_objects_finds_the_best(rule):
    served = served_by(SCORES, 4, False, rule, 2000, 2)
    assert served.low <= served.map <= served.high
    assert served.map == pytest.approx(anchors(SCORES)[2], abs=0.01)
    back = served_by(SCORES, 3, True, rule, 2000, 2)
    assert back.map == pytest.approx(0.5, abs=0.01)


def test_read_matrix_that_is_none_is_refused(tmp_path):
    path = tmp_path / "matrix.csv"
    with pytest.raises(UserError, match="is no matrix of mAP"):
        read_matrix(path)
    path.write_text("source,a,b\na,0.1,0.2\n")
    with pytest.raises(UserError, match="has not as many cameras as students"):
        read_matrix(path)
