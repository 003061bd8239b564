"""Tests of a job's use, as seconds of a whole GPU and as used microseconds."""

from ekya.core.speed import SpeedCurve
from ekya.gpu.backends.backend import Measured, Resized
from ekya.runtime.job_share import JobUse

HALF_IS_EIGHT_TENTHS = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))


class Handle:
    """Handle that reports a given use."""

    def __init__(self):
        self.used_us = 0

    def measured(self):
        used_us, self.used_us = self.used_us, 0
        return Measured(used_us, 0)


def test_time_is_worth_what_the_share_makes_of_it_and_told_as_it_was_used():
    handle = Handle()
    use = JobUse(handle, HALF_IS_EIGHT_TENTHS, 1000)
    handle.used_us = 1_000_000
    use.count()
    use.holds(Resized(500, 3))
    handle.used_us = 500_000
    assert use.worth_s() == 1.0 + 0.8
    assert (use.unreported_us(), use.unreported_us()) == (1_500_000, 0)


def test_a_batch_that_a_pause_has_caught_up_with_is_worth_what_it_began_at():
    handle = Handle()
    use = JobUse(handle, HALF_IS_EIGHT_TENTHS, 500)
    use.holds(Resized(0, 3))
    use.holds(None)
    handle.used_us = 500_000
    assert use.worth_s() == 0.8


def test_what_the_gpu_has_done_after_the_last_batch_was_counted_is_told_too():
    handle = Handle()
    use = JobUse(handle, HALF_IS_EIGHT_TENTHS, 500)
    use.count()
    handle.used_us = 70
    assert use.unreported_us() == 70
