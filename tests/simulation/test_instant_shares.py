"""Tests of share changes in one process: immediate, reported, and refused if others hold the share."""

import pytest

from ekya.core.events import ShareResized
from ekya.core.shares import inference_holder, retraining_holder
from ekya.core.units import JobId, StreamId
from ekya.simulation.shares import InstantShares

A, B = inference_holder(StreamId("a")), inference_holder(StreamId("b"))
JOB = retraining_holder(StreamId("a"), JobId(1))


def test_instant_shares_change_immediately_with_events():
    shares, went_to = InstantShares(1000), []
    shares.change(A, 700, 1, 10, went_to.append)
    shares.change(A, 300, 2, 20, went_to.append)
    shares.change(B, 700, 2, 20, went_to.append)
    assert went_to == [700, 300, 700]
    assert shares.take_events() == (
        ShareResized(10, A, 1, 700, 0),
        ShareResized(20, A, 2, 300, 0),
        ShareResized(20, B, 2, 700, 0),
    )
    assert shares.take_events() == ()


def test_instant_shares_occupied_share_raises():
    shares = InstantShares(1000)
    shares.change(A, 700, 1, 0, lambda share_milli: None)
    with pytest.raises(ValueError, match="there are not 400 thousandths"):
        shares.change(B, 400, 1, 0, lambda share_milli: None)


def test_instant_shares_ended_job_frees_its_share():
    shares, went_to = InstantShares(1000), []
    shares.change(JOB, 800, 1, 0, went_to.append)
    shares.remove_holder(JOB, 50)
    shares.remove_holder(JOB, 60)
    shares.change(A, 1000, 2, 60, went_to.append)
    assert went_to == [800, 1000]
    assert shares.take_events()[1] == ShareResized(50, JOB, 1, 0, 0)


def test_instant_shares_silent_job_returns_its_share():
    shares, went_to = InstantShares(1000), []
    shares.silence(A, 0)
    shares.change(A, 600, 1, 0, went_to.append)
    shares.silence(A, 10)
    shares.change(B, 1000, 2, 10, lambda share_milli: None)
    assert went_to == [600, 0]


def test_instant_shares_job_failing_at_start_holds_nothing():
    shares = InstantShares(1000)
    shares.change(JOB, 800, 1, 0, lambda share_milli: shares.remove_holder(JOB, 0))
    shares.change(A, 1000, 1, 0, lambda share_milli: None)
