"""What the page shows of the past comes back after a restart, quickly and without a replay."""

from dataclasses import replace

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


@pytest.mark.parametrize("content", ["", "{", '{"format": 2, "cameras": {}}', '{"format": 1, "cameras": 3}'])
def test_file_that_cannot_be_read_is_no_past(folder, content, caplog):
    past_file(folder).write_text(content)
    assert read_past(folder, CAMERAS) == {}
    assert "anew, since it" in caplog.text


def test_file_of_another_version_says_what_is_lost(folder, caplog):
    past_file(folder).write_text('{"format": 2, "cameras": {}}')
    read_past(folder, CAMERAS)
    lost = "the page's curves, retrainings and counts begin anew, since it has another format"
    assert f"{past_file(folder)}: {lost}" in caplog.text


def test_points_after_a_clock_that_was_set_back_are_left_out(folder):
    keep_past(folder, {CAM_1: CameraPast(a_history(60).past())})
    for now_s, points in ((3600, 6), (25, 3), (-3600, 0)):
        history = read_past(folder, CAMERAS, BEGAN_UNIX_S + now_s)[CAM_1].history
        assert (len(history.fine.unix_s), len(history.fine.accuracy)) == (points, points)
