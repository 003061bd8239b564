"""Bounds, optima and executed windows by which schedulers are measured, and their problems."""

from dataclasses import replace
from pathlib import Path

import bench_executed as bench
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.bound import upper_bound
from optimum.pareto import INFERENCE_PARTS_MILLI, pareto_frontier, pareto_points, uniform_baselines
from optimum.problems import load_problems, problem
from optimum.problems import view_of as view_of_problem
from views import options_of

from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.generator_parameters import MEASURED_SPEED
from ekya.testing import GAMMAS, accuracies, window_views

SHIPPED = Path(__file__).resolve().parents[2] / "experiments" / "problems.yaml"


def test_problems_are_200_with_unique_seeds_and_both_speed_curves():
    problems = list(load_problems(SHIPPED).problems())
    assert len(problems) == len({one.seed for one in problems}) == 200
    assert {one.speed for one in problems} == {"linear", "measured"}
    assert {one.gpus / one.streams for one in problems} == {0.2, 0.4, 0.6, 0.8, 1.0}


def test_problem_view_has_every_option_and_nothing_running():
    chosen = load_problems(SHIPPED)
    first, *_, last = chosen.problems()
    view = chosen.view(first)
    assert (view.training_speed, chosen.view(last).training_speed) == (LINEAR, MEASURED_SPEED)
    assert view.capacity_milli == 2000
    assert len(view.streams) == 10
    for stream in view.streams:
        assert len(stream.retrain_options) == 18
        assert len(stream.inference_options) == 8
        assert stream.running is None


def test_problem_view_is_window_2_of_its_trace():
    chosen = load_problems(SHIPPED)
    first = next(chosen.problems())
    assert chosen.view(first) == view_of_problem(chosen.trace(first, 5), 2, 2000, chosen.shape)


def test_problem_of_same_seed_is_the_same():
    assert problem(3, 4, 1.0) == problem(3, 4, 1.0)
    assert problem(3, 4, 1.0) != problem(4, 4, 1.0)


def test_problem_wrong_key_is_named(tmp_path):
    path = tmp_path / "problems.yaml"
    path.write_text(SHIPPED.read_text(encoding="utf-8").replace("seeds_each: 20", "seeds_each: many"))
    with pytest.raises(UserError, match="seeds_each"):
        load_problems(path)


TINY = 1e-9
ROUGH = {"intervals": 4, "rounds": 20}


@st.composite
def plans(draw):
    """A view, and arbitrary phases for it: any shares that fit at each instant."""
    view = replace(draw(window_views().filter(lambda view: view.streams)), quantum_milli=1)
    gammas = {
        s.stream: draw(st.sampled_from([None, *(o.config for o in options_of(s))])) for s in view.streams
    }
    phases = []
    for _ in range(draw(st.integers(1, 3))):
        left, assignments = view.capacity_milli, []
        for stream in view.streams:
            shares = []
            for most in (1000 if gammas[stream.stream] else 0, 1000):
                shares.append(draw(st.integers(0, min(most, left))))
                left -= shares[-1]
            chosen = draw(st.sampled_from([o.config for o in stream.inference_options]))
            assignments.append(
                Assignment(stream.stream, gammas[stream.stream], shares[0], chosen, shares[1], False, "")
            )
        phases.append(Phase(tuple(assignments)))
    return view, phases


@settings(max_examples=20)
@given(plans())
def test_bound_is_not_exceeded_by_any_plan(case):
    view, phases = case
    assert evaluate_phases(view, phases).score <= upper_bound(view, **ROUGH) + TINY


@settings(max_examples=10)
@given(window_views(), st.integers(1, 2000))
def test_bound_with_more_gpus_never_falls(view, more):
    """The tolerance is the error of the search for the best prices."""
    richer = replace(view, capacity_milli=view.capacity_milli + more)
    assert upper_bound(richer, intervals=4, rounds=60) >= upper_bound(view, intervals=4, rounds=60) - 5e-5


@settings(max_examples=10)
@given(window_views(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_bound_with_better_options_never_falls(view, gained, cheaper):
    def better(option):
        after = option.accuracy_after + gained * (1.0 - option.accuracy_after)
        return replace(option, accuracy_after=after, gpu_s=option.gpu_s * cheaper)

    def sharper(option):
        relative = option.relative_accuracy + gained * (1.0 - option.relative_accuracy)
        needed = int(option.share_needed_milli * cheaper)
        return replace(option, relative_accuracy=relative, share_needed_milli=needed)

    streams = tuple(
        replace(
            s,
            retrain_options=tuple(better(o) for o in s.retrain_options),
            inference_options=tuple(sharper(o) for o in s.inference_options),
            running=s.running and replace(s.running, option=better(s.running.option)),
        )
        for s in view.streams
    )
    richer = replace(view, streams=streams)
    assert upper_bound(richer, intervals=4, rounds=60) >= upper_bound(view, intervals=4, rounds=60) - 5e-5


def stream(name="a", accuracy=0.5, options=((0.9, 10.0),), needed=400, **changes):
    return StreamView(
        StreamId(name),
        accuracy,
        tuple(RetrainOption(GAMMAS[at], after, gpu_s) for at, (after, gpu_s) in enumerate(options)),
        (InferenceOption(InferenceConfig(1, 32), 0.8, needed),),
        **changes,
    )


def view_of(*streams, capacity=2000, **changes):
    return replace(WindowView(0, 60_000_000, capacity, 50, 50, 0.4, streams, LINEAR), **changes)


def test_bound_with_enough_gpus_equals_accuracy_on_a_whole_gpu():
    """The retraining is done after 10 of 60 s at a whole GPU."""
    assert upper_bound(view_of(stream())) == pytest.approx(0.8 * (0.5 + 0.4 * 50 / 60), abs=1e-6)


def rising(**changes):
    plain = stream(needed=0, **changes)
    options = tuple(replace(option, early_part=0.5) for option in plain.retrain_options)
    return replace(plain, retrain_options=options)


@pytest.mark.parametrize(("gpu_s", "brought"), [(30.0, 0.4 * (30 + 15) / 60), (120.0, 0.4 / 4)])
def test_bound_with_checkpoints_rises_by_at_most_their_gain(gpu_s, brought):
    """A linear gain: up to 0.9 in 30 s and then for 30 s, or half of the way by the end."""
    found = upper_bound(view_of(rising(options=((0.9, gpu_s),)), capacity=1000), **ROUGH)
    assert 0.8 * (0.5 + brought) - TINY <= found <= 0.8 * (0.5 + brought) + 0.02


def test_bound_with_checkpoints_pays_for_their_gpu_time():
    """Of three retrainings of 30 s in 60 s two are done in sequence; alone each would come to 0.64."""
    three = [rising(name=f"c{at}", options=((0.9, 30.0),)) for at in range(3)]
    found = upper_bound(view_of(*three, capacity=1000), **ROUGH)
    in_a_row = 0.8 * (0.5 + 0.4 * (45 + 15) / 60 / 3)
    assert in_a_row - TINY <= found <= in_a_row + 0.06


def test_bound_without_gpus_is_zero():
    assert upper_bound(view_of(stream(), capacity=0)) == pytest.approx(0.0, abs=1e-4)


def test_bound_without_streams_is_zero():
    assert upper_bound(view_of()) == 0.0


def test_bound_includes_queueing_of_retrainings_on_one_gpu():
    """Twenty of 3 s each fill the window; in parallel they would gain 0.4 · 57/60, in sequence half of it."""
    many = [stream(f"cam-{at:02}", options=((0.9, 3.0),), needed=0) for at in range(20)]
    in_a_row = sum(0.8 * (0.5 + 0.4 * (60 - 3 * at) / 60) for at in range(1, 21)) / 20
    found = upper_bound(view_of(*many, capacity=1000), intervals=20, rounds=120)
    assert in_a_row - TINY <= found <= in_a_row + 0.02


def test_bound_ignores_shares_that_the_quantum_cannot_reach():
    """With a quantum of 250 thousandths inference can hold 250 of 450; with a quantum of 1 it holds 400."""
    coarse = view_of(stream(options=(), needed=400), capacity=450, quantum_milli=250, steal_milli=250)
    assert upper_bound(coarse) == pytest.approx(0.8 * 0.5 * 250 / 400, abs=1e-4)
    assert upper_bound(replace(coarse, quantum_milli=1)) == pytest.approx(0.8 * 0.5, abs=1e-4)


def test_bound_with_minimum_accuracy_is_below_free_bound():
    """Without the minimum, retraining would take the share that inference needs to stay at 0.4."""
    greedy = view_of(*(stream(f"c{at}", options=((0.95, 8.0),), accuracy=0.52) for at in range(2)))
    scarce = replace(greedy, capacity_milli=900)
    free, kept = upper_bound(scarce), upper_bound(scarce, keep_minimum=True)
    assert make_scheduler("exact").plan(scarce).expected_accuracy <= kept + TINY
    assert kept < free - 0.01


def options(*rows):
    return [RetrainOption(GAMMAS[place], accuracy, gpu_s) for place, (accuracy, gpu_s) in enumerate(rows)]


two_streams = st.lists(
    st.lists(st.tuples(accuracies, st.integers(1, 50).map(float)), min_size=5, max_size=5),
    min_size=2,
    max_size=2,
)


@given(two_streams)
def test_frontier_point_is_never_dominated(rows):
    held_out = [options(*one) for one in rows]
    frontier = pareto_frontier(held_out)
    means = [(sum(a for a, _ in pair) / 2, sum(g for _, g in pair) / 2) for pair in zip(*rows, strict=True)]
    assert [o.gpu_s for o in frontier] == sorted({o.gpu_s for o in frontier})
    for point in frontier:
        assert not any(
            a >= point.accuracy_after and g <= point.gpu_s and (a, g) != (point.accuracy_after, point.gpu_s)
            for a, g in means
        )
    best = max(a for a, _ in means)
    assert frontier[-1].accuracy_after == best


@given(two_streams)
def test_pareto_cheap_point_costs_less_and_is_nearly_as_accurate(rows):
    held_out = [options(*one) for one in rows]
    by_gamma = {option.config: option for option in pareto_frontier(held_out)}
    high, low = (by_gamma[config] for config in pareto_points(held_out))
    assert low.gpu_s <= high.gpu_s
    assert low.accuracy_after >= 0.9 * high.accuracy_after


def test_pareto_points_are_chosen_by_mean_of_streams():
    """The second γ is best on one stream, and the third on the mean of both."""
    held_out = [options((0.6, 1), (0.95, 10), (0.9, 10)), options((0.78, 1), (0.5, 10), (0.8, 10))]
    assert pareto_points(held_out) == (GAMMAS[2], GAMMAS[2])
    held_out = [options((0.8, 1), (0.95, 10), (0.9, 10)), options((0.78, 1), (0.5, 10), (0.8, 10))]
    assert pareto_points(held_out) == (GAMMAS[2], GAMMAS[0])


def test_pareto_gamma_not_measured_on_every_stream_is_skipped():
    assert pareto_points([options((0.6, 1), (0.9, 2)), options((0.6, 1))]) == (GAMMAS[0], GAMMAS[0])
    with pytest.raises(ValueError, match="measured on every"):
        pareto_points([options((0.6, 1)), []])
    with pytest.raises(ValueError, match="measured on every"):
        pareto_points([])


def test_pareto_options_have_both_gammas_with_every_inference_part():
    made = uniform_baselines(GAMMAS[0], GAMMAS[1])
    assert {(o.fixed_gamma, o.inference_part_milli) for o in made} == {
        (gamma, part) for gamma in GAMMAS[:2] for part in INFERENCE_PARTS_MILLI
    }
    assert len(made) == 6


problems = bench.load_problems(bench.PROBLEMS)


@pytest.fixture(scope="module")
def row():
    one = bench.Problem(seed=7000, streams=3, gpus=0.9, speed="linear")
    return bench.measured(problems, one, bench.uniform_schedulers(problems))


def test_bench_executed_scores_stay_below_bound_and_ekya_above_thief(row):
    assert row.bound >= row.ekya >= row.thief
    assert row.ekya >= row.uniform
    assert row.thief_times is None or row.thief_times >= 1.0


def test_bench_executed_windows_of_same_curve_and_gpus_are_grouped(row):
    (one,) = bench.combinations([row, row])
    assert one.windows == 2
    assert one.means["ekya"] == pytest.approx(row.ekya)
    assert one.closed == pytest.approx((row.ekya - row.thief) / (row.bound - row.thief))


def test_bench_executed_median_with_half_missing_is_none():
    assert bench.median_of(iter([2.0, None, None])) is None
    assert bench.median_of(iter([2.0, 1.0, None])) == 2.0


def test_times_more_adds_gpus_until_score_is_reached():
    view = problems.view(next(problems.problems()))
    reached = bench.times_more(view, 4.0, lambda more: more.capacity_milli / 1000)
    assert reached == pytest.approx(2.0)
    assert bench.times_more(view, 100.0, lambda more: 0.0) is None


def test_bench_executed_quick_covers_recorded_windows_of_every_combination():
    every, few = list(problems.problems()), bench.a_few(problems)
    assert set(few) < set(every)
    combined = {(one.speed, one.gpus) for one in every}
    assert len(few) == bench.QUICK_EACH * len(combined)
    assert {(one.speed, one.gpus) for one in few} == combined
