"""Every stream keeps one analysed frame a second, under any scheduler's plan."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import at_grants

from ekya.core.configs import InferenceConfig
from ekya.core.shares import Job, Work
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, StreamView, WindowView
from ekya.planning.schedulers.allocation import (
    inference_floors,
    kept_floors,
    left_by_inference,
    shares_of,
    with_floors,
)
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler
from ekya.testing import window_views

MAY_STARVE = [name for name in sorted(SCHEDULERS) if not make_scheduler(name).needs.fixed_shares]


def granted(name, view):
    """Returns the plan as the loop grants it from one pool."""
    scheduler = make_scheduler(name)
    plan = scheduler.plan(view)
    shares = with_floors(
        shares_of(plan.phases[0]), inference_floors(view), view.capacity_milli, view.quantum_milli
    )
    return at_grants(view, plan, scheduler.needs, shares=shares)


@settings(max_examples=200)
@given(st.sampled_from(MAY_STARVE), window_views())
def test_floors_are_kept_or_lowered_equally(name, view):
    floors = inference_floors(view)
    shares = shares_of(granted(name, view).phases[0])
    quanta, total = view.capacity_milli // view.quantum_milli, sum(floors.values())
    assert sum(shares.values()) <= view.capacity_milli
    for job, floor in floors.items():
        least = floor
        if total > quanta * view.quantum_milli:
            least = quanta * floor // total * view.quantum_milli
        assert shares[job] >= least


@given(window_views(), st.randoms(use_true_random=False))
def test_with_floors_keeps_shares_above_floors(view, draw):
    shares = {
        job: floor + draw.randrange(3) * view.quantum_milli for job, floor in inference_floors(view).items()
    }
    assert with_floors(shares, inference_floors(view), sum(shares.values()), view.quantum_milli) == shares


@given(view=window_views())
def test_left_by_inference_takes_no_stream_below_its_floors(view):
    left = left_by_inference(view)
    beside = replace(view, capacity_milli=view.capacity_milli - left)
    assert left % view.quantum_milli == 0
    if left:
        assert kept_floors(beside, beside.capacity_milli) == kept_floors(view, view.capacity_milli)
        assert sum(inference_floors(view).values()) <= beside.capacity_milli


def camera(name, accuracy, frame_milli=200):
    """Ten frames a second need a share of ``10 * frame_milli``; at one a second results are 1.9 s old."""
    lambdas = tuple(
        InferenceOption(InferenceConfig(every, 32), every**-0.35, 10 * frame_milli // every, every * 187_000)
        for every in (1, 2, 5, 10)
    )
    return StreamView(StreamId(name), accuracy, (), lambdas)


def overloaded(*streams, capacity_milli=1000):
    return WindowView(0, 60_000_000, capacity_milli, 50, 100, 0.4, streams, LINEAR)


def test_ekya_under_overload_feeds_every_camera():
    names = ("cam-1", "cam-2", "cam-3", "cam-4")
    # Only the first camera reaches the minimum accuracy, and it needs the whole machine for that.
    streams = camera("cam-1", 0.95), *(camera(name, 0.3) for name in names[1:])
    view = replace(overloaded(*streams), min_accuracy=0.7)
    for name in MAY_STARVE:
        plan = granted(name, view)
        given = {one.stream: one for one in plan.phases[0].assignments}
        assert all(given[StreamId(one)].inference_share_milli >= 200 for one in names)
    starving = make_scheduler("ekya").plan(view).phases[0].assignments
    lifted = {one.stream for one in starving if one.inference_share_milli < 200}
    assert lifted, "or this is no overload"
    reasons = {one.stream: one.reason for one in granted("ekya", view).phases[0].assignments}
    for stream in lifted:
        assert reasons[stream].endswith("so that one frame a second is analysed, which every camera keeps")


def test_ekya_with_floors_too_large_lowers_all_alike():
    names = ("cam-1", "cam-2", "cam-3", "cam-4")
    view = overloaded(*(camera(name, 0.9 - 0.1 * number, 500) for number, name in enumerate(names)))
    shares = shares_of(granted("ekya", view).phases[0])
    assert {share for job, share in shares.items() if job.work is Work.INFERENCE} == {250}


@pytest.mark.parametrize(
    ("changed", "floor_milli"),
    [
        pytest.param(lambda option: {"age_us": 0}, 0, id="without ages"),
        pytest.param(lambda option: {"ample_milli": option.share_needed_milli * 6 // 5}, 250, id="ample"),
        pytest.param(lambda option: {"age_us": 9_000_000}, 200, id="all too old: the cheapest"),
    ],
)
def test_inference_floor_follows_ages_and_ample_shares(changed, floor_milli):
    stream = camera("cam-1", 0.5)
    options = tuple(replace(option, **changed(option)) for option in stream.inference_options)
    view = overloaded(replace(stream, inference_options=options))
    assert inference_floors(view) == {Job(StreamId("cam-1"), Work.INFERENCE): floor_milli}
