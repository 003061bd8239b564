"""What a folder says of a run or a service."""

import json
import os

import pytest
from service_folder import CAM, a_service, put

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.service.folder_status import folder_status
from ekya.service.supervised import count_restart
from ekya.system.files import hold_folder, holder_of


def test_status_of_a_service(tmp_path):
    folder = a_service(tmp_path)
    count_restart(folder.path, 17.5, "was killed by SIGKILL")
    now = folder_status(folder)
    assert (now.name, now.service, now.pid, now.ended) == ("yard", True, None, False)
    assert (now.window, now.window_opened_us, now.window_ends_us) == (2, 20_000_000, 30_000_000)
    assert (now.restarts.count, now.restarts.last_reason) == (1, "was killed by SIGKILL")
    (camera,) = now.cameras
    assert (camera.id, camera.version, camera.models) == (CAM, 4, 5)
    assert camera.accuracy == pytest.approx(0.84)
    assert now.pieces_bytes["journal"] > 0
    secret = len("TOP-SECRET")
    assert (now.pieces_bytes["exemplars"], now.pieces_bytes["validations"]) == (secret, secret)
    assert now.pictures_bytes == {CAM: 2 * secret}
    assert now.folder_bytes > sum(now.pieces_bytes.values())
    assert now.free_bytes > 0


def test_status_finds_the_window_far_from_the_end_of_a_journal(tmp_path):
    folder = a_service(tmp_path)
    line = json.dumps({"now_us": 1, "events": [{"kind": "Warned", "text": "x" * 1000}]}) + "\n"
    with (folder.path / "journal-000002.jsonl").open("a") as file:
        file.write("\n" + line * 3000)
    assert folder_status(folder).window == 2


def test_status_finds_the_window_in_an_earlier_segment(tmp_path):
    folder = a_service(tmp_path)
    put(folder, "journal-000003.jsonl", '{"scheduler": "ekya"}\n')
    assert folder_status(folder).window == 2


def test_status_of_a_run_that_has_not_begun(tmp_path):
    now = folder_status(RunFolder.create_numbered(tmp_path, "monday"))
    assert (now.service, now.window, now.cameras, now.restarts.count) == (False, None, (), 0)


def test_status_of_a_run_with_a_report(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "monday")
    put(folder, "report.html", "")
    assert folder_status(folder).ended


def test_status_names_the_process_that_runs_it(tmp_path):
    folder = a_service(tmp_path)
    with hold_folder(folder.path):
        assert folder_status(folder).pid == os.getpid()
    assert folder_status(folder).pid is None


def test_folder_has_one_holder_at_a_time(tmp_path):
    with hold_folder(tmp_path):
        with (
            pytest.raises(UserError, match=f"process {os.getpid()} uses this folder"),
            hold_folder(tmp_path),
        ):
            pass
        assert holder_of(tmp_path) == os.getpid()
    with hold_folder(tmp_path):
        pass
    assert holder_of(tmp_path / "none") is None
