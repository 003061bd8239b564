"""The value tables equal PickConfigs to the last bit, except for rounding in exponentials."""

import pytest
from hypothesis import given, settings
from views import options_of, window_views

from ekya.planning.schedulers.allocation import choices_by_stream, kept_floors
from ekya.planning.schedulers.tables import NO_FLOOR, value_tables


@settings(max_examples=40)
@given(window_views())
def test_the_tables_hold_what_is_picked_at_every_share(view):
    tables = value_tables(view)
    assert tables.streams == tuple(sorted(stream.stream for stream in view.streams))
    for row, choice in enumerate(choices_by_stream(view).values()):
        for quanta in range(tables.levels):
            share = quanta * view.quantum_milli
            serving = choice.retraining(share).serving
            exactly = not any(option.early_part for option in options_of(choice.stream))
            assert tables.serving[row, quanta] == (serving if exactly else pytest.approx(serving, abs=1e-12))
            assert tables.part[row, quanta] == choice.inference(share).part
        assert bool(tables.retrains[row]) == choice.has_retraining


@settings(max_examples=40)
@given(window_views())
def test_floors_are_what_the_constraints_need(view):
    tables = value_tables(view)
    each = {job.stream: share for job, share in kept_floors(view, 10**9).items()}
    for stream, floor in zip(tables.streams, tables.floors, strict=True):
        assert (floor == NO_FLOOR) == (stream not in each)
        assert floor == NO_FLOOR or floor * view.quantum_milli == each[stream]
