"""Tests of the log of a service."""

import json
import logging
import re

import pytest

from ekya.core.errors import UserError
from ekya.service import logs
from ekya.service.logs import log_file, logging_to_folder

LOG = logging.getLogger("ekya.service.test")
URL = "rtsp://admin:${LOG_TEST_PASSWORD}@10.0.0.5/live"


@pytest.fixture(autouse=True)
def level(caplog):
    caplog.set_level(logging.INFO)


def lines_of(folder):
    return [json.loads(line) for line in log_file(folder).read_text(encoding="utf-8").splitlines()]


def in_log(folder, named=""):
    return logging_to_folder(folder, lambda: {"cam-1", "cam-2"}, lambda: named)


def test_log_line_has_time_level_logger_message_and_camera(tmp_path):
    with in_log(tmp_path):
        LOG.warning("%s: its worker took %.1f s", "cam-1", 2.5)
        LOG.info("a window of\nγ opens")
    first, second = lines_of(tmp_path)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "warning",
        "logger": "ekya.service.test",
        "message": "cam-1: its worker took 2.5 s",
        "camera": "cam-1",
    }
    assert second["message"] == "a window of\nγ opens"
    assert "camera" not in second


def test_log_hides_passwords_also_in_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_TEST_PASSWORD", "pa/ss-word")
    with in_log(tmp_path, named=URL):
        LOG.warning("cannot open rtsp://admin:secret@10.0.0.5/live?token=abcdef")
        try:
            raise ValueError("the login pa/ss-word was refused")
        except ValueError:
            LOG.exception("it broke")
    text = log_file(tmp_path).read_text(encoding="utf-8")
    assert not re.search("secret|abcdef|pa/ss|ss-word", text)
    broke = lines_of(tmp_path)[1]
    assert broke["level"] == "error"
    assert "test_log_hides_passwords" in broke["traceback"]
    assert "the login *** was refused" in broke["traceback"]


def test_log_is_rotated_by_size_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    with in_log(tmp_path):
        for number in range(200):
            LOG.info("line %d of a log that is long enough to fill many files", number)
    files = sorted(path.name for path in log_file(tmp_path).parent.iterdir())
    assert files == ["service.jsonl", *(f"service.jsonl.{number}" for number in range(1, 6))]
    assert all(path.stat().st_size <= 2000 for path in log_file(tmp_path).parent.iterdir())
    assert lines_of(tmp_path)[-1]["message"].startswith("line 199 ")


def test_log_goes_on_in_the_file_of_the_last_start(tmp_path):
    for number in range(2):
        with in_log(tmp_path):
            LOG.info("start %d", number)
    LOG.info("after its end")
    assert [line["message"] for line in lines_of(tmp_path)] == ["start 0", "start 1"]


def test_log_in_a_folder_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(UserError, match="logs"), in_log(tmp_path):
        pass


def test_log_on_a_full_disk_is_told_once_and_ends_in_order(tmp_path, caplog, capsys):
    log_file(tmp_path).parent.mkdir()
    log_file(tmp_path).symlink_to("/dev/full")
    with in_log(tmp_path):
        for number in range(3):
            LOG.info("line %d", number)
    assert caplog.text.count("lines are lost ([Errno 28] No space left on device)") == 1
    assert capsys.readouterr().err == ""
