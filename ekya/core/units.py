"""Integer units of time and shares, so that sums are exact and journals can be compared byte by byte."""

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
