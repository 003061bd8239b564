import bench_executed as bench
import pytest

problems = bench.load_problems(bench.PROBLEMS)


@pytest.fixture(scope="module")
def row():
    one = bench.Problem(seed=7000, streams=3, gpus=0.9, speed="linear")
    return bench.measured(problems, one, bench.uniform_schedulers(problems))


def test_nobody_exceeds_the_bound_and_ekya_is_not_below_the_thief(row):
    assert row.bound >= row.ekya >= row.thief
    assert row.ekya >= row.uniform
    assert row.thief_times is None or row.thief_times >= 1.0


def test_windows_with_the_same_curve_and_gpus_stand_together(row):
    (one,) = bench.combinations([row, row])
    assert one.windows == 2
    assert one.means["ekya"] == pytest.approx(row.ekya)
    assert one.closed == pytest.approx((row.ekya - row.thief) / (row.bound - row.thief))


def test_half_of_the_windows_without_a_number_have_no_median():
    assert bench.median_of(iter([2.0, None, None])) is None
    assert bench.median_of(iter([2.0, 1.0, None])) == 2.0


def test_gpus_are_added_until_the_score_is_reached():
    view = problems.view(next(problems.problems()))
    reached = bench.times_more(view, 4.0, lambda more: more.capacity_milli / 1000)
    assert reached == pytest.approx(2.0)
    assert bench.times_more(view, 100.0, lambda more: 0.0) is None


def test_a_quick_look_is_at_windows_that_were_written_down_and_at_every_combination():
    every, few = list(problems.problems()), bench.a_few(problems)
    assert set(few) < set(every)
    combined = {(one.speed, one.gpus) for one in every}
    assert len(few) == bench.QUICK_EACH * len(combined)
    assert {(one.speed, one.gpus) for one in few} == combined
