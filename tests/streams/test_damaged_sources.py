"""A few damaged files of every kind; ``make long`` reads 200 of each."""

import pytest
from damaged_sources import BAD, KINDS, read_damaged


@pytest.mark.live
@pytest.mark.virtual
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.long)])
def test_damaged_files_give_error_text_or_counted_frames(kind, count):
    assert [case for case in read_damaged(kind, count, seed=11) if case.fate in BAD] == []
