"""Test of a few damaged files of every kind; the recipe does 200 of each."""

import pytest
from fuzz_sources import BAD, KINDS, cases
from rich.console import Console

SEED = 11


@pytest.mark.live
@pytest.mark.virtual
@pytest.mark.parametrize("kind", KINDS)
def test_fuzz_sources_damaged_files_give_error_text_or_counted_frames(kind):
    found = list(cases(kind, 2, SEED, Console(quiet=True)))
    assert [case for case in found if case.fate in BAD] == []
