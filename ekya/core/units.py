"""Time and shares are integers, so that sums are exact and journals compare to the byte."""

US_PER_S = 1_000_000
"""Microseconds in a second."""

FULL_GPU_MILLI = 1000
"""A whole GPU in thousandths, the unit of every share."""


def seconds_to_us(seconds: float) -> int:
    """The nearest whole microsecond."""
    return round(seconds * US_PER_S)


def us_to_seconds(time_us: int) -> float:
    """Seconds, for people and for arithmetic with rates."""
    return time_us / US_PER_S
