"""The series of a camera, and that what the page shows of the past comes back after a restart."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from counting import calls_of
from kept_status import BEGAN_UNIX_S, CAMERAS, Clock, make_keeper, scripted_run, step_of
from script import CAM_1, CAM_2

from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.service.history import (
    COARSE_POINTS,
    FINE_POINTS,
    CameraHistory,
    CameraPast,
    keep_past,
    past_file,
    read_past,
)

S = 1_000_000


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def restarted(folder, run, cameras=CAMERAS):
    """Returns a keeper of the next process, after its first step."""
    keeper = make_keeper(Clock(), past=read_past(folder, cameras))
    batch, result = step_of(run, -1)
    keeper(replace(batch, events=()), result)
    return keeper


def a_history(seconds):
    history = CameraHistory()
    for at_s in range(0, seconds, 10):
        history.add_point(at_s * S, (BEGAN_UNIX_S + at_s, 0.8, 150, 350))
    return history


def test_curves_retrainings_and_counts_go_on_after_a_restart(folder):
    run, keeper = scripted_run()
    keep_past(folder, keeper.past())
    after = restarted(folder, run)
    for camera in CAMERAS:
        before, now = keeper.series(camera), after.series(camera)
        assert now.unix_s[: len(before.unix_s)] == before.unix_s
        assert now.accuracy[: len(before.accuracy)] == before.accuracy
        assert after.retrainings(camera) == keeper.retrainings(camera)
        assert after.status().camera(camera).retrainings == keeper.status().camera(camera).retrainings
    assert keeper.retrainings(CAM_1)
    was, now = keeper.status().camera(CAM_1), after.status().camera(CAM_1)
    assert now.frames_due == was.frames_due > 0
    assert (now.drifts, now.labels, now.labels_unix_s) == (was.drifts, was.labels, was.labels_unix_s)


def test_counts_of_the_metrics_begin_at_zero(folder):
    run, keeper = scripted_run()
    keep_past(folder, keeper.past())
    camera = restarted(folder, run).status(since_start=True).camera(CAM_1)
    assert (camera.frames_due, camera.labels, camera.retrainings.served) == (0, 0, 0)


def test_past_of_a_camera_that_left_does_not_come_back(folder):
    run, keeper = scripted_run()
    keep_past(folder, keeper.past())
    assert read_past(folder, [CAM_2]).keys() == {CAM_2}
    assert restarted(folder, run, [CAM_2]).status().camera(CAM_1).frames_due == 0


def test_process_that_ends_before_its_first_step_keeps_the_past(folder):
    _, keeper = scripted_run()
    keep_past(folder, keeper.past())
    past = read_past(folder, CAMERAS)
    assert past
    assert make_keeper(Clock(), past=past).past() == past


def test_history_of_a_week_comes_back_at_once(folder):
    week = a_history(8 * 24 * 3600)
    past = week.past()
    assert (len(past.fine.unix_s), len(past.coarse.unix_s)) == (FINE_POINTS, COARSE_POINTS + 1)
    cameras = [StreamId(f"cam-{number}") for number in range(10)]
    keep_past(folder, dict.fromkeys(cameras, CameraPast(past)))
    assert past_file(folder).stat().st_size < 10 * 100_000
    histories = []

    def come_back():
        read = read_past(folder, cameras)
        histories.extend(CameraHistory(read[camera].history) for camera in cameras)

    assert calls_of(come_back) < 10 * FINE_POINTS, "less than a call for a point"
    assert histories[0].series().unix_s[-FINE_POINTS:] == week.series().unix_s[-FINE_POINTS:]


def test_minutes_before_a_restart_are_in_a_mean_of_the_week():
    past = a_history(1_000).past()
    assert past.coarse.unix_s[-1] == pytest.approx(BEGAN_UNIX_S + 945)
    again = CameraHistory(past)
    for at_s in range(1_100, 9_000, 10):
        again.add_point(at_s * S, (BEGAN_UNIX_S + at_s, 0.9, 150, 0))
    assert BEGAN_UNIX_S + 945 in again.series().unix_s


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "the page begins anew, since it cannot be read"),
        ("{", "the page begins anew, since it cannot be read"),
        ('{"format": 1, "cameras": 3}', "the page begins anew, since it cannot be read"),
        (
            '{"format": 2, "cameras": {}}',
            "the page's curves, retrainings and counts begin anew, since it has another format",
        ),
    ],
)
def test_file_that_cannot_be_read_is_no_past_and_says_what_is_lost(folder, content, why, caplog):
    past_file(folder).write_text(content)
    assert read_past(folder, CAMERAS) == {}
    assert f"{past_file(folder)}: {why}" in caplog.text


def test_points_after_a_clock_that_was_set_back_are_left_out(folder):
    keep_past(folder, {CAM_1: CameraPast(a_history(60).past())})
    for now_s, points in ((3600, 6), (25, 3), (-3600, 0)):
        history = read_past(folder, CAMERAS, BEGAN_UNIX_S + now_s)[CAM_1].history
        assert (len(history.fine.unix_s), len(history.fine.accuracy)) == (points, points)


DAY_S = 24 * 3600


def history_until(end_s, every_s=10, value=lambda at_s: at_s):
    history = CameraHistory()
    for at_s in range(0, end_s, every_s):
        history.add_point(at_s * S, (at_s, value(at_s), at_s % 1000, 2 * at_s))
    return history


def test_history_without_points_is_empty():
    series = CameraHistory().series()
    assert series.unix_s == series.accuracy == series.inference_milli == series.retraining_milli == ()


def test_history_has_one_point_in_ten_seconds():
    series = history_until(60, every_s=1).series()
    assert series.unix_s == (0, 10, 20, 30, 40, 50)


def test_history_keeps_every_point_of_the_last_hour():
    series = history_until(2 * 3600).series()
    fine = [at_s for at_s in series.unix_s if at_s >= 3600]
    assert fine == list(range(3600, 7200, 10))
    assert len(fine) == FINE_POINTS


def test_history_has_means_of_five_minutes_before_the_last_hour():
    series = history_until(2 * 3600).series()
    means = series.unix_s[:-FINE_POINTS]
    assert means == tuple(begin_s + 145 for begin_s in range(0, 3600, 300))
    assert series.accuracy[:2] == (145, 445)
    assert series.inference_milli[:4] == (
        145,
        445,
        745,
        (10 * sum(range(90, 100)) + 10 * sum(range(20))) / 30,
    )
    assert series.retraining_milli[0] == 290


def test_history_keeps_a_week_and_no_more():
    series = history_until(10 * DAY_S, every_s=60).series()
    assert len(series.unix_s) <= FINE_POINTS + COARSE_POINTS
    assert list(series.unix_s) == sorted(series.unix_s)
    assert 6.9 * DAY_S < series.unix_s[-1] - series.unix_s[0] <= 7.1 * DAY_S


def test_history_of_unknown_accuracy_is_none_and_no_part_of_a_mean():
    value = {0: math.nan, 10: 0.5, 20: 1.0}
    series = history_until(7200, value=lambda at_s: value.get(at_s % 300, math.nan)).series()
    assert series.accuracy[0] == 0.75
    assert series.accuracy[-1] is None
    assert history_until(7200, value=lambda at_s: math.nan).series().accuracy[0] is None


def test_history_has_a_gap_where_no_step_came():
    history = CameraHistory()
    for at_s in (0, 10, 900, 910):
        history.add_point(at_s * S, (at_s, 0.5, 0, 0))
    assert history.series().unix_s == (0, 10, 900, 910)


@pytest.mark.parametrize("end_s", [3590, 3600, 3610, 3900, 3910])
def test_history_is_in_order_and_without_gap_where_means_and_points_meet(end_s):
    unix_s = history_until(end_s).series().unix_s
    distances = [later - earlier for earlier, later in pairwise(unix_s)]
    assert min(distances) > 0
    assert max(distances) <= 300


@pytest.mark.parametrize("back_s", [10, 15, 200, 3600, DAY_S])
@pytest.mark.parametrize("before_s", [400, 2 * 3600, 50_000])
def test_history_stays_in_order_of_time_after_a_clock_was_set_back(before_s, back_s):
    history = history_until(before_s)
    for at_s in range(before_s, before_s + 2 * 3600, 10):
        unix_s = at_s - back_s
        history.add_point(at_s * S, (unix_s, 0.5, 0, 0))
        for series in (history.series(), history.past().fine, history.past().coarse):
            assert all(earlier < later for earlier, later in pairwise(series.unix_s))
        assert history.series().unix_s[-1] == unix_s


def test_history_keeps_what_was_before_the_time_to_which_a_clock_was_set_back():
    history = history_until(400)
    history.add_point(400 * S, (200, 0.5, 0, 0))
    assert history.series().unix_s == tuple(range(0, 201, 10))
    history.add_point(410 * S, (-50, 0.5, 0, 0))
    assert history.series().unix_s == (-50,)
