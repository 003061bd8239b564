"""What a folder says of a run or a service, and what the backend of a service takes from it."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_service import CAMERAS, FakeService
from service_folder import CAM, a_service, put

from ekya.core.errors import UserError
from ekya.core.units import JobId
from ekya.core.weights import Validation
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.validation_files import KeptValidation, keep_validation
from ekya.service.backend import ServiceBackend
from ekya.service.folder_status import folder_status
from ekya.service.status import RetrainingRow
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


KEPT = KeptValidation(Validation(("car",), ((3,),), ((3,),), ()), ())


def row(job, began_s):
    return RetrainingRow(job, 3, "γ", 0.8, 0.9, 12.0, "served", "", began_s, began_s + 100.0)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def validated_rows(folder, *rows):
    keeper = SimpleNamespace(retrainings=lambda camera: rows)
    backend = ServiceBackend(SimpleNamespace(), keeper, SimpleNamespace(), folder, ("car",))
    return [one.validated for one in backend.retrainings(CAM)]


def keep(folder, job, written_s):
    keep_validation(folder, CAM, JobId(job), KEPT)
    os.utime(folder.validations(CAM) / f"{job}.json", (written_s, written_s))


def test_roll_back_passes_the_version_on(folder):
    asked = []
    cameras = {"cam-1": replace(CAMERAS[0], id="cam-1", model_version=2)}

    def roll_back(*told):
        asked.append(told)
        cameras["cam-1"] = replace(cameras["cam-1"], model_version=cameras["cam-1"].model_version + 1)

    keeper = SimpleNamespace(status=lambda since_start: FakeService(cameras).status())
    control = SimpleNamespace(roll_back=roll_back)
    backend = ServiceBackend(control, keeper, SimpleNamespace(), folder, ("car",))
    backend.roll_back("cam-1", 0)
    backend.roll_back("cam-1")
    assert asked == [(CAM, 0), (CAM, None)]


def test_retraining_is_validated_while_its_file_is_kept(folder):
    keep(folder, 7, 1_090.0)
    assert validated_rows(folder, row(6, 900.0), row(7, 1_000.0)) == [False, True]
    assert validated_rows(folder) == []


def test_validation_is_of_the_last_retraining_of_its_number(folder):
    """A service that was killed begins its window again, and gives a number twice."""
    keep(folder, 7, 2_090.0)
    assert validated_rows(folder, row(7, 1_000.0), row(7, 2_000.0)) == [False, True]


def test_retraining_that_wrote_none_has_not_that_of_an_earlier_one_of_its_number(folder):
    keep(folder, 7, 1_090.0)
    assert validated_rows(folder, row(7, 1_000.0), row(7, 2_000.0)) == [False, False]
