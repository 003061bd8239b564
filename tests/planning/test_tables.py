"""The value tables equal PickConfigs to the last bit, except for rounding in exponentials."""

import pytest
from hypothesis import given, settings
from views import options_of, window_views

from ekya.planning.schedulers.allocation import choices_by_stream, kept_floors
from ekya.planning.schedulers.pick import StreamChoices
from ekya.planning.schedulers.tables import value_tables


@settings(max_examples=40)
@given(window_views())
def test_value_tables_equal_picks_at_every_share(view):
    tables = value_tables(view)
    for row, choice in enumerate(choices_by_stream(view).values()):
        for quanta in range(tables.levels):
            share = quanta * view.quantum_milli
            serving = choice.choose_retraining(share).serving
            exactly = not any(option.early_part for option in options_of(choice.stream))
            assert tables.serving[row, quanta] == (serving if exactly else pytest.approx(serving, abs=1e-12))
            assert tables.part[row, quanta] == choice.choose_inference(share).part
        assert bool(tables.retrains[row]) == choice.has_retraining


@settings(max_examples=40)
@given(window_views())
def test_kept_floors_are_first_shares_that_keep_constraints(view):
    each = {job.stream: share for job, share in kept_floors(view, 10**9).items()}
    assert each == {stream.stream: floor_milli(view, stream) for stream in view.streams}


def floor_milli(view, stream):
    """Returns the first share at which both constraints are kept, or as many as a whole GPU keeps."""
    shares = range(0, 1001, view.quantum_milli)
    picked = [StreamChoices(view, stream).choose_inference(share) for share in shares]
    for keeps in (
        lambda one: not (one.below_min or one.too_old),
        lambda one: stream.max_age_us is not None and not one.too_old,
        lambda one: not one.below_min,
    ):
        for share, one in zip(shares, picked, strict=True):
            if keeps(one):
                return share
    return 0
