"""Weights that are not trained here: from the cloud, or kept from earlier windows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import at_grants

from ekya.core.configs import InferenceConfig
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import LINEAR
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption, RetrainOption, RunningRetraining, StreamView, WindowView
from ekya.core.weights import CachedModel, Elsewhere
from ekya.planning.schedulers.cloud_and_reuse import (
    CELLULAR,
    Cloud,
    LinkOrder,
    Network,
    arrivals_s,
    closest_model,
    sample_megabits,
    transfers_done_s,
)
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import make_scheduler
from ekya.testing import GAMMAS, window_views

S = 1_000_000
LAMBDAS = (
    InferenceOption(InferenceConfig(1, 32), 1.0, 400),
    InferenceOption(InferenceConfig(5, 32), 0.8, 100),
)
OFFERED = tuple(RetrainOption(config, 0.5, 0.0) for config in GAMMAS[:4])


def view(*streams, now_s=100, capacity=1000):
    return WindowView(now_s * S, 200 * S, capacity, 50, 50, 0.4, streams, LINEAR)


def stream(name, **changes):
    return StreamView(StreamId(name), 0.5, changes.pop("options", OFFERED), LAMBDAS, **changes)


FAST = Network(uplink_mbps=4.0, downlink_mbps=39.8)
"""A stream's 40 Mb of 100 s take 10 s up, and a model takes 10 s down."""


def cloud(seen, **options):
    scheduler = Cloud(network=FAST, **options)
    plan = scheduler.plan(seen)
    assert at_grants(seen, plan, scheduler.needs).phases == plan.phases
    return plan.phases[0].assignments


def test_cloud_models_arrive_in_sequence_without_share():
    first, second = cloud(view(stream("a"), stream("b")))
    assert (first.elsewhere, second.elsewhere) == (Elsewhere(120 * S), Elsewhere(130 * S))
    assert [a.retrain_share_milli for a in (first, second)] == [0, 0]
    assert [a.inference_share_milli for a in (first, second)] == [500, 500]
    assert "waits for weights from the cloud" in first.reason
    assert "here after 20 s" in first.reason


def test_cloud_gamma_is_most_thorough_or_configured():
    assert cloud(view(stream("a")))[0].retrain == GAMMAS[3]
    assert cloud(view(stream("a")), fixed_gamma=GAMMAS[0])[0].retrain == GAMMAS[0]
    assert cloud(view(stream("a")), fixed_gamma=GAMMAS[9])[0].retrain is None


def test_cloud_running_model_keeps_arrival_and_others_queue():
    under_way = RunningRetraining(JobId(1), OFFERED[3], 0, Elsewhere(120 * S))
    seen = view(stream("a", options=(), running=under_way), stream("b"), now_s=110)
    first, second = cloud(seen)
    assert first.elsewhere == Elsewhere(120 * S)
    assert first.retrain == OFFERED[3].config
    assert second.elsewhere == Elsewhere(139 * S)


def test_cloud_model_after_window_end_says_so():
    slow = make_scheduler("cloud:up=0.3:down=0.5").plan(view(stream("a"))).phases[0].assignments[0]
    assert slow.elsewhere.arrives_us > 200 * S
    assert "not here before the window ends" in slow.reason


def test_cloud_arrival_counts_from_its_time():
    """At 50% until 120 s, then 90% for the other 80 of 100 s."""
    seen = view(stream("a", options=(RetrainOption(GAMMAS[0], 0.9, 0.0),)))
    waits = Assignment(
        StreamId("a"), GAMMAS[0], 0, InferenceConfig(1, 32), 400, False, "so", elsewhere=Elsewhere(120 * S)
    )
    found = evaluate_phases(seen, (Phase((waits,)),))
    assert found.score == pytest.approx(0.2 * 0.5 + 0.8 * 0.9)
    assert found.completions_us == ((StreamId("a"), 120 * S),)
    late = replace(waits, elsewhere=Elsewhere(250 * S))
    assert evaluate_phases(seen, (Phase((late,)),)).score == pytest.approx(0.5)
    unknown = replace(waits, elsewhere=Elsewhere(120 * S, trained_in=3))
    with pytest.raises(ValueError, match="not offered"):
        evaluate_phases(seen, (Phase((unknown,)),))


KEPT = (
    CachedModel(GAMMAS[0], 1, (8, 2, 0)),
    CachedModel(GAMMAS[0], 2, (40, 10, 0)),
    CachedModel(GAMMAS[1], 2, (40, 10, 0)),
    CachedModel(GAMMAS[0], 3, (0, 0, 9)),
)


def test_reuse_picks_most_similar_mix_then_youngest():
    assert closest_model((7, 3, 0), KEPT).trained_in == 2
    assert closest_model((0, 1, 5), KEPT).trained_in == 3
    assert closest_model((0, 0, 0), KEPT) is None
    assert closest_model((1, 0, 0), ()) is None
    assert (
        closest_model(
            (1, 0), (CachedModel(GAMMAS[0], 1, (1, 0, 9)), CachedModel(GAMMAS[0], 2, (5, 4, 0)))
        ).trained_in
        == 2
    )


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.permutations(KEPT), st.integers(1, 7))
def test_closest_ignores_order_and_amount(histogram, kept, times):
    assert closest_model(histogram, kept) == closest_model([times * one for one in histogram], KEPT)


def test_reuse_serves_now_and_gives_all_to_inference():
    plan = make_scheduler("reuse").plan(view(stream("a", histogram=(7, 3, 0), cached=KEPT), stream("b")))
    first, second = plan.phases[0].assignments
    assert first.elsewhere == Elsewhere(100 * S, trained_in=2)
    assert "serves again what it learnt in window 2" in first.reason
    assert (second.retrain, second.elsewhere) == (None, None)
    assert [a.inference_share_milli for a in (first, second)] == [500, 500]


mixes = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@st.composite
def away_views(draw):
    """Views with kept models and with weights in transit."""
    seen = draw(window_views())
    return replace(seen, streams=tuple(draw(away(stream, seen.now_us)) for stream in seen.streams))


@st.composite
def away(draw, stream, now_us):
    running = stream.running
    if running is not None:
        coming = Elsewhere(now_us + draw(st.integers(0, 90)) * S, draw(st.sampled_from([None, 0, 2])))
        running = replace(running, share_milli=0, elsewhere=coming)
    kept = st.builds(CachedModel, st.sampled_from(GAMMAS[:4]), st.integers(0, 4), mixes)
    cached = draw(st.lists(kept, max_size=3, unique_by=lambda model: (model.config, model.trained_in)))
    return replace(stream, running=running, histogram=draw(mixes), cached=() if running else tuple(cached))


both = pytest.mark.parametrize("name", ["cloud", "cloud:up=40:down=90", "cloud:order=shared", "reuse"])


@both
@settings(max_examples=30)
@given(seen=away_views())
def test_plan_ignores_option_order_and_matches_objective(name, seen):
    plan = make_scheduler(name).plan(seen)
    shuffled = [
        replace(stream, cached=stream.cached[::-1], retrain_options=tuple(reversed(stream.retrain_options)))
        for stream in seen.streams
    ]
    assert make_scheduler(name).plan(replace(seen, streams=tuple(shuffled))) == plan
    assert plan.expected_accuracy == evaluate_phases(seen, plan.phases).score


@both
@settings(max_examples=30)
@given(seen=away_views())
def test_plan_of_remote_weights_needs_no_share(name, seen):
    plan = make_scheduler(name).plan(seen)
    for stream, given_to in zip(seen.streams, plan.phases[0].assignments, strict=True):
        assert given_to.retrain_share_milli == 0
        assert (given_to.retrain is None) == (given_to.elsewhere is None)
        if stream.running is not None:
            assert given_to.retrain == stream.running.option.config
            assert given_to.elsewhere == stream.running.elsewhere
        elif given_to.elsewhere is not None:
            assert given_to.elsewhere.arrives_us >= seen.now_us


orders = st.sampled_from(list(LinkOrder))
transfers = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), max_size=6)


def test_paper_example_takes_432_seconds():
    """§6.5: eight streams, 400 s, 160 Mb each up over 5.1 Mbps and 398 Mb each down over 17.5 Mbps."""
    assert sample_megabits(400) == pytest.approx(160)
    cellular = Network(CELLULAR.uplink_mbps, CELLULAR.downlink_mbps, LinkOrder.SHARED)
    assert arrivals_s(cellular, [160.0] * 8) == pytest.approx([432.9] * 8, abs=0.1)


def test_in_turn_downloads_overlap_uploads():
    done = arrivals_s(CELLULAR, [160.0] * 8)
    one_up, one_down = 160 / 5.1, 398 / 17.5
    assert done == pytest.approx([(place + 1) * one_up + one_down for place in range(8)])
    assert done[-1] < 400


def test_more_bandwidth_is_never_later():
    last = [max(arrivals_s(net, [160.0] * 8)) for net in (CELLULAR, Network(8.5, 15.0), Network(10.2, 35.0))]
    assert last == sorted(last, reverse=True)


def test_shared_link_splits_from_joining_on():
    """Alone for 2 of its 4 s, then at half the rate for 4 s; the other has 1 of its 3 s left then."""
    assert transfers_done_s([0, 2], [4, 3], 1.0, LinkOrder.SHARED) == pytest.approx((6, 7))
    assert transfers_done_s([0, 2], [4, 3], 1.0, LinkOrder.IN_TURN) == pytest.approx((4, 7))
    assert transfers_done_s([5, 0], [1, 1], 1.0, LinkOrder.SHARED) == pytest.approx((6, 1))


@given(transfers, st.integers(1, 9), orders)
def test_link_is_never_overloaded_nor_idle(jobs, mbps, order):
    ready, sizes = [one for one, _ in jobs], [two for _, two in jobs]
    done = transfers_done_s(ready, sizes, mbps, order)
    busy_until = 0.0
    for at, size in sorted(zip(ready, sizes, strict=True)):
        busy_until = max(busy_until, at) + size / mbps
    assert max(done, default=0.0) == pytest.approx(busy_until)
    for at, size, end in zip(ready, sizes, done, strict=True):
        assert end >= at + size / mbps - 1e-9
    for limit in done:
        carried = sum(size for size, end in zip(sizes, done, strict=True) if end <= limit)
        assert carried <= mbps * limit + 1e-6


@given(transfers, st.integers(1, 9))
def test_in_turn_equal_transfers_are_sooner_on_average(jobs, mbps):
    ready = [one for one, _ in jobs]
    means = [
        sum(transfers_done_s(ready, [10.0] * len(ready), mbps, order))
        for order in (LinkOrder.IN_TURN, LinkOrder.SHARED)
    ]
    assert means[0] <= means[1] + 1e-6
