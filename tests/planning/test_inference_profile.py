"""Accuracy cost of skipped frames, counted by hand on small bursts (paper §3.1)."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import StreamCosts
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.planning.profiling.inference_profile import (
    HEADROOM,
    KEEPS_UP_PART,
    PRIOR_OBJECTS,
    BurstFrame,
    at_measured_use,
    floor_milli,
    held_frames,
    inference_options,
    measured_relative_accuracy,
    period_gpu_s,
    prior_relative_accuracy,
    used_milli,
)

FPS = 10.0
COSTS = {16: 0.004, 32: 0.01}
SIDE = 30.0


def frame(*objects, seen_16=None):
    """A frame with objects as (x, true class, class that the model predicts at 32 px)."""
    boxes = np.array([[x, 0, x + SIDE, SIDE] for x, _, _ in objects], np.float32).reshape(-1, 4)
    says = np.array([answer for _, _, answer in objects], np.int64)
    count = len(objects)
    alike = count if seen_16 is None else int((says == np.array(seen_16, np.int64)).sum())
    return BurstFrame(
        boxes,
        np.array([label for _, label, _ in objects], np.int64),
        {32: (count, count), 16: (alike, count)},
    )


def relative(burst, *configs):
    """Returns the relative accuracy that a burst shows for each λ."""
    return [measured_relative_accuracy(config, 32, burst) for config in configs]


def offered(burst, *configs):
    """Returns the relative accuracy that is offered for each λ."""
    return [option.relative_accuracy for option in inference_options(configs, burst, COSTS, FPS)]


def every(k, side=32):
    return InferenceConfig(k, side)


MOVING = [frame((at * SIDE, 1, 1)) for at in range(6)]
TWO = (0, 1, 1), (100, 2, 2)


@pytest.mark.parametrize(
    ("burst", "configs", "expected"),
    [
        pytest.param([frame(*TWO)] * 6, (every(1), every(2), every(5)), [1, 1, 1], id="a still scene"),
        # Every second frame is right, from either start: 6 frames give 3 of 6 and 3 of 5.
        pytest.param(MOVING, (every(2),), [6 / 11], id="a moving object"),
        # Two boxes a third of their width apart overlap at exactly 1/2, and boxes further apart by less.
        pytest.param([frame((at * SIDE / 3, 1, 1)) for at in (0, 1)], (every(2),), [1], id="overlap of half"),
        pytest.param([frame((at * SIDE / 2.9, 1, 1)) for at in (0, 1)], (every(2),), [2 / 3], id="and below"),
        pytest.param([frame(TWO[0]), frame(*TWO)], (every(1), every(2)), [1, 4 / 5], id="one appears"),
        pytest.param(
            [frame((0, 1, 1), (100, 2, 0))] * 4, (every(1), every(2)), [1, 1], id="always wrong about one"
        ),
        pytest.param(
            [frame(*TWO, seen_16=[1, 0])] * 3,
            (every(1), every(1, 16), every(2, 16)),
            [1, 0.5, 0.5],
            id="a coarse resolution",
        ),
        # Otherwise a drifted model would analyse at a low resolution, and so would its successor.
        pytest.param(
            [frame((0, 1, 0), (100, 2, 0), seen_16=[3, 0])] * 3,
            (every(1), every(1, 16)),
            [1, 0.5],
            id="a coarse resolution and a wrong model",
        ),
        pytest.param(
            [frame(*TWO), frame((0, 2, 2), (100, 1, 1))], (every(2),), [4 / 6], id="classes change places"
        ),
    ],
)
def test_relative_accuracy_of(burst, configs, expected):
    assert relative(burst, *configs) == pytest.approx(expected)


def test_always_wrong_model_still_shows_skipping_loss():
    """Positions of objects count, not luck: a wrong model and a right one give the same."""
    wrong = [frame((at * SIDE, 1, 0)) for at in range(6)]
    assert relative(wrong, every(1), every(2)) == relative(MOVING, every(1), every(2)) == [1.0, 6 / 11]


@pytest.mark.parametrize("burst", [[], [frame()] * 3], ids=["no burst", "no objects"])
def test_without_burst_prior_is_used(burst):
    configs = (every(1), every(2), every(10), every(2, 16))
    guesses = offered(burst, *configs)
    assert guesses == [prior_relative_accuracy(config, 32) for config in configs]
    assert guesses[0] == 1.0
    assert guesses[0] > guesses[1] > guesses[2] > 0.0
    assert guesses[3] < guesses[1]


def test_few_objects_are_mixed_with_prior():
    guess = prior_relative_accuracy(every(5), 32)

    def still(count):
        (told,) = offered([frame(*((100 * at, 1, 1) for at in range(count)))] * 6, every(1), every(5))[1:]
        return told

    assert still(2) == pytest.approx((2 + PRIOR_OBJECTS * guess) / (2 + PRIOR_OBJECTS))
    assert guess < still(1) < still(2) < still(20) < 1.0


def test_short_burst_extrapolates_long_gaps():
    burst = [frame((0, 1, 1))] * 3
    lost = prior_relative_accuracy(every(10), 32) / prior_relative_accuracy(every(3), 32)
    assert relative(burst, every(2), every(3), every(10)) == [1.0, 1.0, pytest.approx(lost)]


@pytest.mark.parametrize(("config", "needed"), [(every(1), 115), (every(2), 58), (every(10, 16), 5)])
def test_needed_share_keeps_up(config, needed):
    """10 frames a second of 10 ms are a tenth of a GPU; headroom is added, and the sum is rounded up."""
    (option,) = inference_options([every(1), config], [], COSTS, FPS)[1:]
    exact = COSTS[config.resolution] * FPS / config.every * HEADROOM * 1000
    assert exact <= option.share_needed_milli == needed < exact + 1


def test_result_age_spans_to_next_analysed_frame():
    """Every fifth of 10 frames a second is half a second; a frame takes its GPU time at the 8% it needs."""
    (option,) = inference_options([every(5)], [], {32: 0.04 / HEADROOM}, FPS)
    assert option.share_needed_milli == 80
    assert option.age_us == pytest.approx(500_000 + 0.04 / HEADROOM / 0.08 * 1e6, abs=1)


def test_result_age_without_cost_is_frame_distance():
    (option,) = inference_options([every(2)], [], {32: 0.0}, FPS)
    assert (option.share_needed_milli, option.age_us) == (0, 200_000)


def test_camera_beyond_one_gpu_needs_more_than_1000():
    (option,) = inference_options([every(1)], [], {32: 0.2}, FPS)
    assert option.share_needed_milli > 1000


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 8), max_size=3, unique=True), min_size=1, max_size=8), st.integers(1, 10)
)
def test_relative_accuracy_stays_at_most_one(places, k):
    burst = [frame(*((place * SIDE, place % 3, place % 3) for place in at)) for at in places]
    first, other = offered(burst, every(1), every(k))
    assert 0.0 <= other <= first == 1.0


def test_measured_speed_sets_needed_share_and_age():
    """A frame of 20 ms at 10 a second needs 0.23 of full speed, which 150 thousandths of this device give."""
    bent = SpeedCurve(((0, 0.0), (100, 0.2), (200, 0.26), (1000, 1.0)))
    config = InferenceConfig(1, 32)
    (linear,) = inference_options((config,), (), {32: 0.02}, 10.0)
    (measured,) = inference_options((config,), (), {32: 0.02}, 10.0, bent)
    assert (linear.share_needed_milli, measured.share_needed_milli) == (230, 150)
    assert measured.age_us == linear.age_us == pytest.approx(100_000 + 20_000 / 0.23, abs=1)


def needs(options):
    return [option.share_needed_milli for option in options]


def test_measured_use_scales_every_lambda():
    """Alone a frame takes 10 ms, and now 15: 150 thousandths, of which 142 analyse 19 of 20 frames."""
    options = inference_options((every(1), every(2), every(1, 16)), (), COSTS, FPS)
    assert needs(options) == [115, 58, 46]
    dearer = at_measured_use(options, every(2), 75)
    assert needs(dearer) == [142, 72, 57]
    assert [option.ample_milli for option in dearer] == [172, 87, 69]
    forgotten = {"share_needed_milli": 0, "ample_milli": 0}
    assert [replace(option, **forgotten) for option in dearer] == [
        replace(option, **forgotten) for option in options
    ]


def test_measured_use_scales_only_lambdas_of_its_detector():
    """Costs of the two detectors are measured separately."""
    fifth, ninth = every(5, GOLDEN_RESOLUTION), every(9, GOLDEN_RESOLUTION)
    options = inference_options((every(1), fifth, ninth), (), COSTS | {GOLDEN_RESOLUTION: 0.1}, FPS)
    model, *golden = at_measured_use(options, fifth, 2 * options[1].share_needed_milli)
    assert model == options[0]
    for got, before in zip(golden, options[1:], strict=True):
        assert got.share_needed_milli == pytest.approx(2 * before.share_needed_milli * KEEPS_UP_PART, abs=2)
    model, *golden = at_measured_use(options, every(1), 75)
    assert model.share_needed_milli < options[0].share_needed_milli
    assert golden == list(options[1:])


def test_measured_use_of_unknown_lambda_changes_nothing():
    options = inference_options((every(1),), (), COSTS, FPS)
    assert at_measured_use(options, every(5), 900) is options


@given(st.floats(0.01, 0.2), st.floats(0.2, 4.0))
def test_measured_use_sets_ample_share_with_headroom(alone_gpu_s, times):
    """Also on curves that are not linear, where a thousandth is up to 0.0036 of full speed."""
    lambdas = (every(1), every(2), every(5))
    for speed in (LINEAR, SpeedCurve(((0, 0.0), (100, 0.36), (500, 0.83), (1000, 1.0)))):
        profiled, truly = (
            inference_options(lambdas, (), {32: gpu_s}, FPS, speed)
            for gpu_s in (alone_gpu_s, alone_gpu_s * times)
        )
        seen = used_milli(every(1), alone_gpu_s * times, FPS, speed)
        corrected = at_measured_use(profiled, every(1), seen, speed)
        for got, wanted, before in zip(corrected, needs(truly), needs(profiled), strict=True):
            rounded = sum(0.0036 / speed.speed_needed(share) for share in (before, needs(profiled)[0], seen))
            wanted_speed = speed.speed_needed(wanted)
            assert speed.speed_needed(got.ample_milli) == pytest.approx(
                wanted_speed, rel=1.5 * rounded, abs=0.0072
            )
            assert got.share_needed_milli <= got.ample_milli


def test_followed_boxes_count_where_they_were_followed_to():
    """An object moves by its size in each frame; flow finds it one frame later, and loses it after that."""
    burst = [frame((SIDE * at, 1, 1)) for at in range(4)]
    held = [one.boxes for one in burst]
    label = burst[0].labels
    burst = [
        replace(one, followed=tuple((box, label) for box in (held[at + 1 : at + 2] + held[at + 1 : at + 2])))
        for at, one in enumerate(burst)
    ]
    assert measured_relative_accuracy(every(2), 32, burst, held=0) == 1.0
    # From phases 0, 1 and 2: frames 2 of four, 3 of three, and none of two have lost it.
    assert measured_relative_accuracy(every(3), 32, burst, held=0) == pytest.approx(7 / 9)
    assert measured_relative_accuracy(every(3), 32, burst, held=1) == pytest.approx(4 / 9)


@pytest.mark.parametrize("held", range(12))
@pytest.mark.parametrize("shown", range(1, 7))
def test_no_lambda_is_more_accurate_than_the_most_demanding_one(shown, held):
    still = frame((0, 1, 1))
    burst = [replace(still, followed=((still.boxes, still.labels),) * (shown - 1))] * shown
    for k in (1, 2, 3, 5, 9, 15, 30):
        assert 0.0 < measured_relative_accuracy(every(k), 32, burst, held) <= 1.0


def test_followed_boxes_need_a_share_and_promise_more():
    held, followed = (
        inference_options([every(1), every(5)], [], COSTS, FPS, following_gpu_s=gpu_s)
        for gpu_s in ({}, {32: 0.002})
    )
    assert followed[0] == held[0]
    # A frame arrives while one is analysed at the share for all four, and boxes are followed into three.
    assert followed[1].share_needed_milli == ceil((0.01 + 3 * 0.002) * FPS / 5 * HEADROOM * 1000)
    assert followed[1].relative_accuracy > held[1].relative_accuracy + 0.2


def test_golden_detector_is_right_where_it_runs_and_its_boxes_are_followed():
    """An object stands still, so it loses nothing but by the prior, whatever the edge model says."""
    burst = [replace(frame((0, 1, 7)), followed=((frame((0, 1, 1)).boxes, np.array([1])),) * 4)] * 6
    golden, model = inference_options(
        [every(5, GOLDEN_RESOLUTION), every(5)],
        burst,
        COSTS | {GOLDEN_RESOLUTION: 0.1},
        FPS,
        following_gpu_s={GOLDEN_RESOLUTION: 0.002},
    )
    # Three of four frames arrive while one is analysed, and boxes are not followed into these.
    assert golden.share_needed_milli == ceil((0.1 + 1 * 0.002) * FPS / 5 * HEADROOM * 1000)
    assert golden.accuracy_with(0.1) == golden.accuracy_with(0.9) == golden.relative_accuracy > 0.8
    assert model.accuracy_with(0.1) == pytest.approx(0.1 * model.relative_accuracy)


def test_frames_that_arrive_during_an_analysis_are_not_followed():
    """At half a GPU a frame of 0.15 s takes three frames' time: boxes stay in place in two of them."""
    assert held_frames(500, 0.15, FPS) == 2
    assert held_frames(1000, 0.15, FPS) == 0
    late, soon = (prior_relative_accuracy(every(5), 32, held) for held in (2, 0))
    assert prior_relative_accuracy(every(5), 32) < late < soon


def test_period_charges_no_frame_into_which_boxes_are_not_followed():
    golden = {GOLDEN_RESOLUTION: 0.1}, {GOLDEN_RESOLUTION: 0.002}
    fifth = every(5, GOLDEN_RESOLUTION)
    assert period_gpu_s(fifth, *golden, FPS) == pytest.approx(0.1 + 0.002)
    assert period_gpu_s(fifth, *golden, 1.0) == pytest.approx(0.1 + 0.002), "at a fifth of the share"
    assert period_gpu_s(fifth, {GOLDEN_RESOLUTION: 9.0}, golden[1], FPS) == 9.0, "beyond one GPU: none is"
    assert period_gpu_s(fifth, golden[0], {}, FPS) == 0.1


def test_floor_is_that_of_the_cheapest_lambda_of_either_detector():
    of = StreamCosts(10.0, {96: 0.05, GOLDEN_RESOLUTION: 0.1}, following_gpu_s={GOLDEN_RESOLUTION: 0.001})
    assert floor_milli(of, (1,), (96,)) == ceil(0.05 * 10 * HEADROOM * 1000)
    assert floor_milli(of, (1,), (96,), golden_every=(5, 20)) == ceil(0.101 * 10 / 5 * HEADROOM * 1000)
