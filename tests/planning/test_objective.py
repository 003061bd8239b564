import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.executed import going_on
from optimum.per_stream_bound import steps_above
from views import options_of

from ekya.core.configs import InferenceConfig
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.checkpoint_gain import (
    bend_of,
    bends_of,
    early_part_left,
    mean_part,
    mean_parts,
    part_in_steps,
)
from ekya.planning.schedulers.objective import (
    analysed_part,
    evaluate_phases,
    mean_after_retraining,
    worth_of_phases,
)
from ekya.testing import GAMMAS, V100, window_views

EVERY = InferenceConfig(1, 32)


def one_stream(accuracy=0.5, gpu_s=10.0, after=0.9, window_s=100, early_part=0.0):
    stream = StreamView(
        StreamId("a"),
        accuracy,
        (RetrainOption(GAMMAS[0], after, gpu_s, early_part=early_part),),
        (InferenceOption(EVERY, 0.8, 400),),
    )
    return WindowView(0, window_s * 1_000_000, 1000, 100, 100, 0.4, (stream,), LINEAR)


def phase(retrain_share, inference_share, retrain=GAMMAS[0]):
    assigned = Assignment(StreamId("a"), retrain, retrain_share, EVERY, inference_share, False, "")
    return Phase((assigned,))


def test_evaluate_counts_retraining_from_completion():
    view = one_stream()
    found = evaluate_phases(view, [phase(500, 400)])
    assert found.completions_us == (("a", 20_000_000),)
    assert found.score == pytest.approx(0.8 * (0.2 * 0.5 + 0.8 * 0.9))


def test_evaluate_reports_accuracy_at_end():
    assert evaluate_phases(one_stream(), [phase(0, 400, None)]).at_end == pytest.approx(0.5 * 0.8)
    assert evaluate_phases(one_stream(), [phase(500, 400)]).at_end == pytest.approx(0.9 * 0.8)
    assert evaluate_phases(one_stream(), [phase(500, 400), phase(0, 100)]).at_end == pytest.approx(0.9 * 0.2)
    assert evaluate_phases(one_stream(gpu_s=60.0), [phase(500, 400)]).at_end == pytest.approx(0.5 * 0.8)


def test_worth_of_phases_adds_what_serves_on_after_the_window():
    view, phases = one_stream(), [phase(500, 400)]
    found = evaluate_phases(view, phases)
    assert worth_of_phases(view, phases) == found.score
    longer = replace(view, after_us=50_000_000)
    assert worth_of_phases(longer, phases) == pytest.approx(found.score + 0.5 * 0.9 * 0.8)


def test_evaluate_at_end_includes_checkpoints():
    rising = one_stream(gpu_s=60.0, early_part=0.5)
    assert evaluate_phases(rising, [phase(300, 400)]).at_end == pytest.approx(0.8 * (0.5 + 0.4 * 0.5))


def test_evaluate_unfinished_retraining_gains_by_checkpoints():
    """Linear: half of the gain on the way; 50 of 60 GPU-seconds reach five sixths of it."""
    rising = one_stream(gpu_s=60.0, early_part=0.5)
    assert evaluate_phases(rising, [phase(500, 400)]).score == pytest.approx(0.8 * (0.5 + 0.4 * 5 / 6 / 2))
    assert evaluate_phases(rising, [phase(600, 400)]).score == pytest.approx(0.8 * (0.5 + 0.4 / 2))


def test_evaluate_worse_retraining_does_not_serve():
    view = one_stream(after=0.3)
    found = evaluate_phases(view, [phase(500, 400)])
    assert found.completions_us == (("a", 20_000_000),)
    assert found.score == pytest.approx(0.8 * 0.5)
    stream = view.streams[0]
    serving = mean_after_retraining(view, stream.accuracy, stream.retrain_options[0], LINEAR.speed_at(500))
    value = serving * analysed_part(stream.inference_options[0], 400, LINEAR)
    assert value == pytest.approx(0.8 * 0.5)


def test_evaluate_starved_inference_loses_its_slowdown():
    option = InferenceOption(InferenceConfig(1, 32), 0.8, 400)
    assert analysed_part(option, 200, LINEAR) == 0.8 * 0.5
    assert analysed_part(option, 200, V100) == pytest.approx(0.8 * V100.speed_at(200) / V100.speed_at(400))
    assert analysed_part(option, 400, V100) == analysed_part(option, 900, V100) == 0.8
    # A λ that needs more than a GPU does not keep up on a whole one.
    too_much = replace(option, share_needed_milli=1600)
    assert analysed_part(too_much, 1000, V100) == analysed_part(too_much, 1000, LINEAR) == 0.8 * 1000 / 1600


def test_evaluate_keeps_progress_over_phases():
    """B's completion ends the first phase with half of A done; A then needs half as long again."""
    a = one_stream().streams[0]
    b = replace(a, stream=StreamId("b"), retrain_options=(RetrainOption(GAMMAS[0], 0.6, 5.0),))
    view = replace(one_stream(), streams=(a, b), capacity_milli=3000)

    def both(share_a, share_b):
        return Phase(
            (
                Assignment(StreamId("a"), GAMMAS[0], share_a, EVERY, 400, False, ""),
                Assignment(StreamId("b"), GAMMAS[0], share_b, EVERY, 400, False, ""),
            )
        )

    found = evaluate_phases(view, [both(500, 500), both(1000, 0)])
    assert found.completions_us == (("b", 10_000_000), ("a", 15_000_000))


def test_evaluate_without_time_is_current_accuracy():
    assert evaluate_phases(one_stream(window_s=0), [phase(500, 200)]).score == pytest.approx(0.5 * 0.8 * 0.5)


@pytest.mark.parametrize(
    "phases",
    [
        [],
        [Phase(())],
        [phase(500, 400, GAMMAS[1])],
        [Phase((replace(phase(0, 0).assignments[0], inference=InferenceConfig(7, 32)),))],
    ],
)
def test_evaluate_of_unoffered_config_raises(phases):
    with pytest.raises(ValueError, match=r"phase|offered"):
        evaluate_phases(one_stream(), phases)


def test_evaluate_of_second_gamma_raises():
    both_offered = replace(
        one_stream().streams[0],
        retrain_options=(RetrainOption(GAMMAS[0], 0.9, 10.0), RetrainOption(GAMMAS[1], 0.9, 50.0)),
    )
    view = replace(one_stream(), streams=(both_offered,))
    swapped = [phase(100, 400, GAMMAS[0]), phase(100, 400, GAMMAS[1])]
    assert evaluate_phases(view, swapped[:1]).score > 0
    with pytest.raises(ValueError, match="already has"):
        evaluate_phases(view, swapped)


def early(entry, option):
    """Returns the gain that checkpoints have brought so far, by the formula of the curve."""
    if option is None or entry[2] or entry[1] is None or option.early_part == 0.0:
        return 0.0
    bend, done = bend_of(option.early_part), 1.0 - entry[1] / option.gpu_s
    risen = (1.0 - math.exp(-bend * done)) / (1.0 - math.exp(-bend))
    return max(option.accuracy_after - entry[0], 0.0) * risen


def integrate(view, phases, steps):
    """Computes the objective independently, by stepping through time in small steps."""
    left_us = view.window_end_us - view.now_us
    dt_s = left_us / steps / 1e6
    state = {s.stream: [s.accuracy, None, False] for s in view.streams}
    total = 0.0
    current = 0
    for _ in range(steps):
        finished = False
        for assignment in phases[current].assignments:
            stream = next(s for s in view.streams if s.stream == assignment.stream)
            entry = state[assignment.stream]
            option = next((o for o in options_of(stream) if o.config == assignment.retrain), None)
            lam = next(o for o in stream.inference_options if o.config == assignment.inference)
            share = min(assignment.inference_share_milli, 1000)
            served = 1.0
            if lam.share_needed_milli > share:
                needed = lam.share_needed_milli
                full = view.inference_speed.speed_at(needed) if needed <= 1000 else needed / 1000
                served = view.inference_speed.speed_at(share) / full
            total += stream.weight * (entry[0] + early(entry, option)) * lam.relative_accuracy * served * dt_s
            if option is not None and not entry[2]:
                entry[1] = option.gpu_s if entry[1] is None else entry[1]
                entry[1] -= view.training_speed.speed_at(assignment.retrain_share_milli) * dt_s
                if entry[1] <= 0.0:
                    entry[0], entry[2], finished = max(entry[0], option.accuracy_after), True, True
        if finished and current < len(phases) - 1:
            current += 1
    return total / (left_us / 1e6) / sum(stream.weight for stream in view.streams)


@st.composite
def phased(draw):
    view = draw(window_views().filter(lambda v: v.streams and v.window_end_us > v.now_us + 1000))
    view = replace(view, streams=view.streams[:2], training_speed=draw(st.sampled_from([LINEAR, V100])))
    gammas = {
        s.stream: draw(st.sampled_from([None, *(o.config for o in options_of(s))])) for s in view.streams
    }
    phases = [
        Phase(
            tuple(
                Assignment(
                    s.stream,
                    gammas[s.stream],
                    draw(st.integers(0, 1000)) if gammas[s.stream] else 0,
                    draw(st.sampled_from([o.config for o in s.inference_options])),
                    draw(st.integers(0, 1200)),
                    False,
                    "",
                )
                for s in view.streams
            )
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return view, phases


@settings(max_examples=30)
@given(phased())
def test_evaluate_equals_the_integral(case):
    view, phases = case
    # Each completion, and the phase after it, is late by at most one step of the integration.
    assert evaluate_phases(view, phases).score == pytest.approx(integrate(view, phases, 600), abs=6 / 600)


@settings(max_examples=40)
@given(phased())
def test_evaluate_of_one_phase_is_the_product(case):
    view, phases = case
    found = evaluate_phases(view, phases[:1])
    for (name, value), stream in zip(found.per_stream, view.streams, strict=True):
        assigned = next(a for a in phases[0].assignments if a.stream == name)
        retrain = next((o for o in options_of(stream) if o.config == assigned.retrain), None)
        lam = next(o for o in stream.inference_options if o.config == assigned.inference)
        shares = assigned.retrain_share_milli, assigned.inference_share_milli
        alone = stream.accuracy
        if retrain is not None:
            speed = view.training_speed.speed_at(shares[0])
            alone = mean_after_retraining(view, stream.accuracy, retrain, speed)
        alone *= analysed_part(lam, shares[1], view.inference_speed)
        # Completions of other streams cut the work into pieces that each round up to a microsecond.
        left_us = view.window_end_us - view.now_us
        assert math.isclose(value, alone, abs_tol=1e-9 + 5 / left_us)


early_parts = st.floats(0.002, 0.998)
parts = st.floats(0.0, 1.0)
few = settings(max_examples=60)


def risen(bend, done):
    return math.expm1(-bend * done) / math.expm1(-bend)


@few
@given(early_parts)
def test_bend_of_early_part_has_this_mean(early_part):
    bend = bend_of(early_part)
    middles = (np.arange(20_000) + 0.5) / 20_000
    assert np.mean(np.expm1(-bend * middles) / np.expm1(-bend)) == pytest.approx(early_part, abs=1e-5)
    assert mean_part(bend, 0.0, 1.0) == pytest.approx(early_part, abs=1e-9)
    assert bends_of(np.array([early_part, 0.0])) == pytest.approx(np.array([bend, 0.0]), abs=1e-9)


@few
@given(early_parts, parts, parts)
def test_mean_part_of_a_piece_is_its_integral(early_part, one, other):
    bend, (start, end) = bend_of(early_part), sorted((one, other))
    middles = start + (end - start) * (np.arange(4000) + 0.5) / 4000
    mean = np.mean(np.expm1(-bend * middles) / np.expm1(-bend))
    assert mean_part(bend, start, end) == pytest.approx(mean, abs=1e-4)
    assert mean_part(bend, start, start) == pytest.approx(risen(bend, start), abs=1e-9)
    assert mean_parts(*map(np.array, ([bend], [start], [end])))[0] == pytest.approx(
        mean_part(bend, start, end), abs=1e-12
    )


@few
@given(early_parts, parts, parts)
def test_early_part_left_continues_the_curve(early_part, first, second):
    """Work done in two parts reaches what it reaches in one."""
    option = RetrainOption(GAMMAS[0], 0.9, 20.0, early_part=early_part)
    once = going_on(option, 0.4, 20.0 * (first + (1.0 - first) * second))
    half, accuracy = going_on(option, 0.4, 20.0 * first)
    twice = going_on(half, accuracy, half.gpu_s * second)
    assert twice[1] == pytest.approx(once[1], abs=1e-7)
    assert twice[0].gpu_s == pytest.approx(once[0].gpu_s, abs=1e-9)
    if once[0].gpu_s > 1e-3 and twice[1] < 0.9 - 1e-9:
        assert twice[0].early_part == pytest.approx(once[0].early_part, abs=1e-6)


def test_going_on_without_checkpoints_keeps_accuracy():
    option = RetrainOption(GAMMAS[0], 0.9, 20.0)
    assert going_on(option, 0.4, 5.0) == (replace(option, gpu_s=15.0), 0.4)
    assert bend_of(0.0) == early_part_left(0.0, 0.5) == 0.0


@few
@given(early_parts, st.integers(1, 40))
def test_part_in_steps_lags_by_one_step(early_part, steps):
    bend = bend_of(early_part)
    stepped = sum(risen(bend, step / steps) for step in range(steps)) / steps
    assert part_in_steps(bend, steps) == pytest.approx(stepped, abs=1e-5)
    assert stepped <= early_part + 1e-9


@few
@given(early_parts, st.integers(1, 20), parts)
def test_steps_above_never_fall_below_curve(early_part, count, done):
    at, reached = steps_above(early_part, count)
    assert (at[0], reached[0], at[-1]) == (0.0, 0.0, 1.0)
    assert reached[-1] == pytest.approx(1.0, abs=1e-12)
    assert at == sorted(at)
    step = max(index for index in range(count) if at[index] <= done)
    assert reached[step + 1] >= risen(bend_of(early_part), done) - 1e-9
