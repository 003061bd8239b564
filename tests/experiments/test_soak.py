"""What soak.py makes of a day's facts."""

from types import SimpleNamespace

import pytest
import soak
from mosquitto import Received
from soak_facts import Cut, Sample, backs, median, slowest

from ekya.config.fleet_sections import RetentionConfig
from ekya.results.storage.run_folder import RunFolder
from ekya.service.retention import remove_surplus

UP_S = 1000.0
CUT = Cut("cam-1", UP_S - 10.0, UP_S)


def received(*times):
    """Answers, each with the times of its frame and of its receipt, counted from the camera's return."""
    one = Received()
    for frame, (frame_s, received_s) in enumerate(times):
        one.add(frame, UP_S + frame_s, UP_S + received_s)
    return {"cam-1": one}


def test_return_is_the_receipt_of_an_answer_to_a_frame_from_after_it():
    (row,) = backs([CUT], [], received((-11.0, 0.5), (2.0, 4.5), (2.1, 4.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (4.0, 2.0, False)


def test_return_is_counted_from_the_end_of_a_fault_beside_it():
    faults = [("", UP_S + 1.0, UP_S + 30.0), ("cam-2", UP_S, UP_S + 90.0)]
    (row,) = backs([CUT], faults, received((-11.0, -10.0), (31.0, 33.0)))
    assert (row["back_s"], row["frame_s"], row["left_out"]) == (3.0, 1.0, False)


def test_return_before_the_end_of_a_fault_is_left_out_and_one_that_never_comes_is_not():
    fault = [("", UP_S + 1.0, UP_S + 30.0)]
    (row,) = backs([CUT], fault, received((2.0, 4.0), (31.0, 31.5)))
    assert (row["back_s"], row["left_out"]) == (None, True)
    (row,) = backs([CUT], fault, received((-11.0, 0.5)))
    assert (row["back_s"], row["left_out"]) == (None, False)
    assert slowest([1.0, row["back_s"]]) == median([row["back_s"]]) == float("inf")


@pytest.mark.parametrize(("seconds", "expected"), [([], 0.0), ([1.0, 3.0, 2.0], 2.0)])
def test_median_of_returns(seconds, expected):
    assert median(seconds) == expected


@pytest.fixture
def day(tmp_path):
    """A day of a service whose folder has weights of 67 MB, and the past of ``fill``."""
    folder = RunFolder(tmp_path)
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / "0.safetensors").open("wb") as file:
        file.truncate(67_000_000)
    (tmp_path / "starts.jsonl").touch()
    soak.fill(tmp_path / "logs")
    consumer = SimpleNamespace(cameras=dict)
    return soak.Day(SimpleNamespace(service=SimpleNamespace(runs=folder), outcomes=[]), (), consumer)


def test_past_is_removed_until_the_folder_is_within_its_limit(day):
    now_s = iter((100.0, 140.0, 150.0))
    day.now_s = lambda: next(now_s)
    day.watch_disk()
    day.watch_disk()
    assert day.over_s == 40.0
    folder = day.chaos.service.runs
    remove_surplus(folder, RetentionConfig(days=1, gigabytes=soak.RETENTION_GB))
    day.watch_disk()
    assert day.over_s == 40.0
    assert soak.past_removed(folder.path) == 57


def said_of(day, ray_mb=20.0):
    day.samples[:] = [Sample(700.0, 3000.0, 17, 590.0, ray_mb)]
    return list(soak.wrong(day, [], {}, 600.0))


def test_folder_that_stays_too_large_and_logs_of_ray_are_named(day):
    assert [one.split(":")[0] for one in said_of(day)] == ["disk"], "nothing was removed"
    (day.chaos.service.runs.path / "logs" / "past.jsonl.7").unlink()
    assert said_of(day) == []
    assert said_of(day, ray_mb=301.0) == ["Ray: 301 MB of logs"]
    assert said_of(day, ray_mb=0.0) == ["Ray: 0 MB of logs"]
    day.over_s = 49.0
    assert said_of(day) == ["disk: for 49 s above 600 MB, which is the retention"]
