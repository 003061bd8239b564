"""Validations of retrainings on disk: the newest of each camera, whole or not at all."""

import os

import pytest

from ekya.core.errors import NotThereError
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Mistake, Validation
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.validation_files import (
    KEPT,
    KeptValidation,
    forget_validations,
    keep_validation,
    read_validation,
    validated_jobs,
)

CAM, OTHER = StreamId("cam-1"), StreamId("cam-2")
VALIDATION = Validation(("car", ""), ((3, 1), (0, 0)), ((4, 0), (1, 0)), (Mistake("", "car", 0.9),))
KEPT_ONE = KeptValidation(VALIDATION, (b"\xff\xd8 a picture \x00",))


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_validation_is_read_as_it_was_kept(folder):
    keep_validation(folder, CAM, JobId(7), KEPT_ONE)
    assert read_validation(folder, CAM, JobId(7)) == KEPT_ONE
    assert validated_jobs(folder, CAM).keys() == {7}
    os.utime(folder.validations(CAM) / "7.json", (1000.0, 2000.0))
    assert validated_jobs(folder, CAM)[JobId(7)] == 2000.0
    assert validated_jobs(folder, OTHER) == {}


def test_newest_validations_of_each_camera_are_kept(folder):
    keep_validation(folder, OTHER, JobId(1), KEPT_ONE)
    for job in range(KEPT + 3):
        keep_validation(folder, CAM, JobId(job), KEPT_ONE)
        os.utime(folder.validations(CAM) / f"{job}.json", (job, job))
    assert len(validated_jobs(folder, CAM)) == KEPT
    assert JobId(KEPT + 2) in validated_jobs(folder, CAM)
    assert JobId(0) not in validated_jobs(folder, CAM)
    assert validated_jobs(folder, OTHER).keys() == {1}


@pytest.mark.parametrize("content", [b"", b"{", b'{"validation": 3, "pictures": []}'])
def test_validation_that_is_missing_or_damaged_is_not_found(folder, content):
    keep_validation(folder, CAM, JobId(7), KEPT_ONE)
    (folder.validations(CAM) / "7.json").write_bytes(content)
    for job in (7, 8):
        with pytest.raises(NotThereError, match=f"of retraining {job} of cam-1 no validation is kept"):
            read_validation(folder, CAM, JobId(job))


def test_forgotten_validations_are_gone_also_half_written_ones(folder):
    keep_validation(folder, CAM, JobId(7), KEPT_ONE)
    keep_validation(folder, OTHER, JobId(8), KEPT_ONE)
    (folder.validations(CAM) / ".9.json.12-34.tmp").write_bytes(b"half")
    assert forget_validations(folder, CAM)
    assert not any(folder.validations(CAM).iterdir())
    assert not forget_validations(folder, CAM)
    assert validated_jobs(folder, OTHER).keys() == {8}
