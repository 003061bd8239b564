import bench_executed as bench
import pytest

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
