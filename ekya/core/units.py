"""Typed ids, and integer units of time and shares, so that sums and comparisons of journals are exact."""

from typing import NewType

US_PER_S = 1_000_000
"""Microseconds in a second."""

FULL_GPU_MILLI = 1000
"""A whole GPU in thousandths, the unit of every share."""


def seconds_to_us(seconds: float) -> int:
    """Returns the nearest whole microsecond."""
    return round(seconds * US_PER_S)


def us_to_seconds(time_us: int) -> float:
    """Returns seconds, for display and for arithmetic with rates."""
    return time_us / US_PER_S


StreamId = NewType("StreamId", str)
"""One camera and its edge model, for example ``cam-2``."""

JobId = NewType("JobId", int)
"""One retraining, numbered in the order of start."""

ModelVersion = NewType("ModelVersion", int)
"""Number of a stream's model, from 0, the base model with which it began."""

BASE_VERSION = ModelVersion(0)
"""The version of the model that a stream begins with."""

FIRST_JOB = JobId(1)
"""The number of a run's first retraining."""
