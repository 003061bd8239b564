"""`ekya` is never below the best simple rule, on virtual time with the seeds on which it was tuned."""

from io import StringIO

import pytest
from never_below import TUNING_SEEDS, Cell, rows_of
from rich.console import Console

NOISE = 0.3
"""Points that a mean over few seeds may be off."""


@pytest.mark.parametrize("gpus", [2.0, 16.0])
def test_ekya_is_not_below_the_best_simple_rule(gpus):
    """With little GPU the planner decides, and with plenty of it only whether all streams are retrained."""
    cell = Cell(streams=10, gamma="large", drift="usual", gpus=gpus)
    (row,) = rows_of([cell], "ekya", TUNING_SEEDS[:2], 1, Console(file=StringIO()))
    assert row.above >= -NOISE
    assert row.above_no_retrain > 0.0
