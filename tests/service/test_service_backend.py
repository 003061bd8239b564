"""What the backend of a service adds to the status, which retrainings have a validation, and passes on."""

import os
from types import SimpleNamespace

import pytest

from ekya.core.units import JobId, StreamId
from ekya.core.weights import Validation
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.validation_files import KeptValidation, keep_validation
from ekya.service.backend import ServiceBackend
from ekya.service.status import RetrainingRow

CAM = StreamId("cam-1")
KEPT = KeptValidation(Validation(("car",), ((3,),), ((3,),), ()), ())


def row(job, began_s):
    return RetrainingRow(job, 3, "γ", 0.8, 0.9, 12.0, "served", "", began_s, began_s + 100.0)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def validated(folder, *rows):
    keeper = SimpleNamespace(retrainings=lambda camera: rows)
    backend = ServiceBackend(SimpleNamespace(), keeper, SimpleNamespace(), folder, ("car",))
    return [one.validated for one in backend.retrainings(CAM)]


def keep(folder, job, written_s):
    keep_validation(folder, CAM, JobId(job), KEPT)
    os.utime(folder.validations(CAM) / f"{job}.json", (written_s, written_s))


def test_roll_back_passes_the_version_on(folder):
    asked = []
    control = SimpleNamespace(roll_back=lambda *told: asked.append(told))
    backend = ServiceBackend(control, SimpleNamespace(), SimpleNamespace(), folder, ("car",))
    backend.roll_back("cam-1", 0)
    backend.roll_back("cam-1")
    assert asked == [(CAM, 0), (CAM, None)]


def test_retraining_is_validated_while_its_file_is_kept(folder):
    keep(folder, 7, 1_090.0)
    assert validated(folder, row(6, 900.0), row(7, 1_000.0)) == [False, True]
    assert validated(folder) == []


def test_validation_is_of_the_last_retraining_of_its_number(folder):
    """A service that was killed begins its window again, and gives a number twice."""
    keep(folder, 7, 2_090.0)
    assert validated(folder, row(7, 1_000.0), row(7, 2_000.0)) == [False, True]


def test_retraining_that_wrote_none_has_not_that_of_an_earlier_one_of_its_number(folder):
    keep(folder, 7, 1_090.0)
    assert validated(folder, row(7, 1_000.0), row(7, 2_000.0)) == [False, False]
