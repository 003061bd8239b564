import threading
from contextlib import closing

import pytest

from ekya.streams.datasets.waymo.dataset import read_ahead


class Made:
    """Numbers that record how many were made and whether their generator was closed."""

    def __init__(self, count, fails_at=None):
        self.made = 0
        self.closed = False
        self._count, self._fails_at = count, fails_at

    def numbers(self):
        try:
            for number in range(self._count):
                if number == self._fails_at:
                    raise ValueError(f"no {number}")
                self.made += 1
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 3, 100])
def test_read_ahead_any_count_keeps_order(count):
    assert list(read_ahead(Made(10).numbers(), count)) == list(range(10))
    assert list(read_ahead(Made(0).numbers(), count)) == []


def test_read_ahead_makes_at_most_count_in_advance():
    made = Made(100)
    with closing(read_ahead(made.numbers(), 5)) as items:
        assert [next(items), next(items)] == [0, 1]
        assert made.made <= 2 + 5


def test_read_ahead_error_is_raised_in_its_place():
    items = read_ahead(Made(10, fails_at=3).numbers(), 4)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no 3"):
        next(items)


def test_read_ahead_closed_early_leaves_no_thread():
    before = threading.active_count()
    made = Made(100)
    items = read_ahead(made.numbers(), 4)
    next(items)
    items.close()
    assert made.closed
    assert threading.active_count() == before
