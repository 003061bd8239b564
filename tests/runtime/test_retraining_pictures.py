"""Pictures that a service keeps of a retraining: written when it is over, and gone when they are to be."""

import threading
from dataclasses import replace

import cv2
import numpy as np
import pytest
from fake_training import CAM, events_until, process_config, start_command
from waiting import HANG_GUARD_S

from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.models.edge.model import build_edge_model
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.validation_files import read_validation, validated_jobs
from ekya.runtime.actors.actor_messages import Mailbox
from ekya.runtime.actors.retraining_pictures import RetrainingPictures
from ekya.runtime.actors.stream_retraining import StreamRetraining

JOB = JobId(7)
HEAD = RetrainConfig(1, 8, 0, 0, 1.0)


@pytest.fixture
def mailbox():
    return Mailbox()


def part(count, first_track):
    rng = np.random.default_rng(first_track)
    rows = np.arange(count)
    crops = LabelledCrops(
        rng.integers(0, 255, (count, 32, 32, 3), np.uint8), rows % 2, first_track + rows, rows
    )
    return LabelledPart(crops, rows, np.zeros((count, 4), np.float32))


LABELS = StreamLabels(2, part(8, 0), part(6, 100))


@pytest.fixture(scope="module")
def weights():
    return to_bytes(build_edge_model(("person", "bicycle"), 0, 5, "shufflenet_v2_x1_0").eval())


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create_numbered(tmp_path, "run")


def retraining_in(folder, mailbox, service):
    config = process_config(folder).streams[0]
    common = replace(config.common, keeps_hours=service)
    return StreamRetraining(replace(config, common=common), mailbox, MemoryPeaks())


def train(retraining, mailbox, weights):
    """Returns when the retraining is over, and what is kept of it is written."""
    assert retraining.start_retraining(start_command(JOB, HEAD), weights, LABELS, None, 1) is not None
    events_until(mailbox.drain, ev.RetrainFinished)
    for thread in threading.enumerate():
        if thread.name == "retraining":
            thread.join(HANG_GUARD_S)


def test_service_keeps_the_validation_of_a_retraining(folder, mailbox, weights):
    retraining = retraining_in(folder, mailbox, service=True)
    train(retraining, mailbox, weights)
    kept = read_validation(folder, CAM, JOB)
    facts = kept.validation
    assert sum(map(sum, facts.before)) == sum(map(sum, facts.after)) == 6
    assert len(kept.pictures) == len(facts.mistakes)
    for picture in kept.pictures:
        assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR).shape == (32, 32, 3)


def test_run_keeps_no_validation(folder, mailbox, weights):
    retraining = retraining_in(folder, mailbox, service=False)
    train(retraining, mailbox, weights)
    assert not validated_jobs(folder, CAM)


def test_retraining_in_progress_keeps_no_picture_once_forgotten(folder, mailbox, weights, monkeypatch):
    retraining = retraining_in(folder, mailbox, service=True)
    keep = RetrainingPictures.keep_validation

    def forgotten_meanwhile(pictures, *what):
        keep(pictures, *what)
        retraining.forget_pictures()
        keep(pictures, *what)

    monkeypatch.setattr(RetrainingPictures, "keep_validation", forgotten_meanwhile)
    train(retraining, mailbox, weights)
    assert not validated_jobs(folder, CAM)
    assert not folder.exemplars(CAM).exists()
    assert retraining.exemplar_memory().kept is None
