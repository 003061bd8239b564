"""What day_in_an_hour.py makes of a day's facts."""

import pytest
from day_facts import Cut, backs, median, slowest
from mosquitto import Received

UP_S = 1000.0
CUT = Cut("cam-1", UP_S - 10.0, UP_S)


def received(*times):
    """Answers, each with the times of its frame and of its receipt, counted from the camera's return."""
    one = Received()
    for frame, (frame_s, received_s) in enumerate(times):
        one.add(frame, UP_S + frame_s, UP_S + received_s)
    return {"cam-1": one}


def test_return_is_the_receipt_of_an_answer_to_a_frame_from_after_it():
    (row,) = backs([CUT], [], received((-11.0, 0.5), (2.0, 4.5), (2.1, 4.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (4.0, 2.0, False)


def test_return_is_counted_from_the_end_of_a_fault_beside_it():
    faults = [("", UP_S + 1.0, UP_S + 30.0), ("cam-2", UP_S, UP_S + 90.0)]
    (row,) = backs([CUT], faults, received((-11.0, -10.0), (31.0, 33.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (3.0, 1.0, False)


def test_return_before_the_end_of_a_fault_is_left_out_and_one_that_never_comes_is_not():
    fault = [("", UP_S + 1.0, UP_S + 30.0)]
    (row,) = backs([CUT], fault, received((2.0, 4.0), (31.0, 31.5)))
    assert (row["back_s"], row["left_out"]) == (None, True)
    (row,) = backs([CUT], fault, received((-11.0, 0.5)))
    assert (row["back_s"], row["left_out"]) == (None, False)
    assert slowest([1.0, row["back_s"]]) == median([row["back_s"]]) == float("inf")


@pytest.mark.parametrize(("seconds", "expected"), [([], 0.0), ([1.0, 3.0, 2.0], 2.0)])
def test_median_of_returns(seconds, expected):
    assert median(seconds) == expected
