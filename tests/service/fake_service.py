"""A service that does not run: the backend of HTTP tests, with cameras in every state."""

import math
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import cv2
import numpy as np
from waiting import HANG_GUARD_S

from ekya.core.configs import RetrainConfig
from ekya.core.errors import NotThereError, UserError
from ekya.core.speed import LINEAR
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import Mistake, Validation
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.training.protocol import LentProgress
from ekya.models.training.trainer import EpochResult
from ekya.results.storage.run_state import ModelRow
from ekya.results.storage.validation_files import KeptValidation
from ekya.service.status import (
    AuditedAccuracy,
    CameraStatus,
    RetrainingCounts,
    RetrainingRow,
    RetrainingStatus,
    Series,
    ServiceStatus,
    StepTimes,
    WarningCount,
    WarningRow,
)

NOW_UNIX_S = 1_764_093_600.0
GAMMA = RetrainConfig(20, 8, 0, 3, 1.0)
TOKEN = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

RUNNING = RetrainingStatus(17, GAMMA.name, 12, 20, 0.874, 0.889)
_CAMERA = CameraStatus(
    id="",
    state="serving",
    reason="",
    health="ok",
    health_reason="",
    accuracy=0.912,
    audited=AuditedAccuracy(0.887, 0.851, 0.916, 72, NOW_UNIX_S - 3500, NOW_UNIX_S - 130),
    model_version=4,
    every=2,
    resolution=352,
    inference_share_milli=150,
    retraining_share_milli=0,
    retraining=None,
    why="not retrained: the last labels show 91.2%, and the best γ would gain 0.4 points for 22 GPU-seconds",
    frames_due=18_240,
    frames_analysed=18_171,
    weight=1.0,
    frozen=False,
    drifts=1,
    labels=460,
    labels_unix_s=NOW_UNIX_S - 312,
    retrainings=RetrainingCounts(5, 2, 0),
)
CAMERAS = (
    replace(_CAMERA, id="crossing", accuracy=0.934),
    replace(
        _CAMERA,
        id="gate-north",
        accuracy=0.861,
        retraining=RUNNING,
        retraining_share_milli=350,
        why="20 epochs of 3 blocks gain 5.1 points until the window ends; parking-deck leaves 0.35 of a GPU",
        drifts=3,
    ),
    replace(
        _CAMERA,
        id="loading-dock",
        health="unlabelled",
        health_reason="its labels came 40 s too late; use a longer window or a smaller golden model",
        accuracy=0.724,
        model_version=2,
        every=5,
    ),
    replace(
        _CAMERA,
        id="parking-deck",
        state="paused",
        reason="paused by an operator",
        accuracy=0.883,
        every=None,
        resolution=None,
        inference_share_milli=0,
    ),
    replace(
        _CAMERA,
        id="station-hall",
        state="lost",
        reason="no frame for 12.4 s",
        health="lost",
        health_reason="the camera gives no frames; check its power, its network and its login",
        accuracy=None,
        audited=None,
        frames_analysed=14_020,
        inference_share_milli=50,
    ),
    replace(_CAMERA, id="yard", accuracy=0.957, frozen=True, model_version=7, weight=2.0),
)


VALIDATION = Validation(
    ("person", "car", "truck"),
    ((18, 2, 0), (1, 40, 6), (0, 5, 7)),
    ((19, 1, 0), (0, 44, 3), (0, 3, 9)),
    (
        Mistake("truck", "car", 0.973),
        Mistake("car", "truck", 0.951),
        Mistake("truck", "car", 0.884),
        Mistake("car", "truck", 0.79),
        Mistake("person", "car", 0.761),
        Mistake("car", "truck", 0.702),
    ),
)


def picture_of(*seed, shape=(270, 480)):
    """A picture of one colour, another for each seed, as JPEG."""
    colour = np.random.default_rng(seed).integers(0, 256, 3)
    return cv2.imencode(".jpg", np.full((*shape, 3), colour, np.uint8))[1].tobytes()


def series_of(camera, hours=26.0):
    """A series with a drift, a recovery, and an hour in which the service was down."""
    ages_s = [*np.arange(hours * 3600, 3600, -300.0), *np.arange(3600, 0, -10.0)]
    ages_s = [age_s for age_s in ages_s if not 6.0 < age_s / 3600 < 7.0]
    phase = sum(map(ord, camera)) % 7
    into = [(hours * 3600 - age_s) / 1500 + phase / 7 for age_s in ages_s]  # a scene changes every 25 minutes
    accuracy = [
        0.93 - 0.16 * math.exp(-((one % 1) * 5)) + 0.008 * math.sin(one * 90) + 0.006 * math.sin(one * 33)
        for one in into
    ]
    return Series(
        tuple(NOW_UNIX_S - age_s for age_s in ages_s),
        tuple(
            None if camera == "station-hall" and age_s < 700 else a
            for a, age_s in zip(accuracy, ages_s, strict=True)
        ),
        tuple(100.0 if 0.08 < one % 1 < 0.3 else 150.0 for one in into),
        tuple(350.0 if 0.08 < one % 1 < 0.3 else 0.0 for one in into),
    )


@dataclass(eq=False)
class FakeService:
    """Keeps what it was asked; changes show in its status. ``waits`` is what changes that wait wait for."""

    cameras: dict = field(default_factory=lambda: {camera.id: camera for camera in CAMERAS})
    asked: list = field(default_factory=list)
    frames: int = 0
    broken: Exception | None = None
    held: threading.Event | None = None
    waits: str = ""
    shift_s: float = 0.0

    def status(self):
        if self.broken is not None:
            raise self.broken
        return ServiceStatus(
            name="city-east",
            version="0.1",
            scheduler="ekya",
            started_unix_s=NOW_UNIX_S - 26 * 3600,
            now_unix_s=NOW_UNIX_S,
            window=468,
            window_opened_us=93_600_000_000,
            window_ends_us=93_800_000_000,
            now_us=93_676_000_000,
            capacity_milli=1200,
            preparing=False,
            cameras=tuple(sorted(self.cameras.values(), key=lambda camera: camera.id)),
            warnings=(
                WarningRow(NOW_UNIX_S - 4100, "inference/yard", "12 frames could not be decoded"),
                WarningRow(NOW_UNIX_S - 95, "decoder/station-hall", "no frame for 5.0 s; trying again"),
            ),
            warning_counts=(WarningCount("decoder/station-hall", 1), WarningCount("inference/yard", 1)),
            steps=StepTimes((4, 10, 0, 0, 0, 0, 0, 0, 0, 0), 0.03),
        )

    def series(self, camera):
        return series_of(self._known(camera).id)

    def retrainings(self, camera):
        self._known(camera)
        rows = (
            (462, 0.842, 0.897, "served", ""),
            (464, 0.888, 0.886, "kept", "its weights were no better on the newest labels"),
            (465, 0.871, None, "failed", "out of GPU memory in the first epoch"),
            (467, 0.823, 0.874, "served", ""),
        )
        return tuple(
            RetrainingRow(
                window - 450,
                window,
                GAMMA.name,
                before,
                after,
                41.3 if after else 2.1,
                outcome,
                reason,
                NOW_UNIX_S - (468 - window) * 200 - 120,
                NOW_UNIX_S - (468 - window) * 200,
                validated=after is not None,
            )
            for window, before, after, outcome, reason in rows
        )

    def read_validation(self, camera, job):
        self._known(camera)
        if job not in (12, 14, 17):
            raise NotThereError(f"of retraining {job} of {camera} no validation is kept")
        pictures = (picture_of(place, shape=(64, 64)) for place in range(len(VALIDATION.mistakes)))
        return KeptValidation(VALIDATION, tuple(pictures))

    def metrics_text(self):
        return b"# TYPE ekya_up gauge\nekya_up 1\n"

    def newest_picture(self, camera):
        self.frames += 1
        return None if self._known(camera).id == "station-hall" else picture_of(self.frames)

    def newest_answer(self, camera):
        self.frames += 1
        if self._known(camera).state != "serving":
            return None
        return {"id": f"{camera}/{self.frames}", "camera": camera, "frame": self.frames, "objects": []}

    def kept_models(self, camera):
        serving = self._known(camera).model_version
        return tuple(
            ModelRow(
                StreamId(camera),
                ModelVersion(version),
                400 + 9 * version,
                f"models/{version}.safetensors",
                GAMMA if version else None,
                0.8 + 0.02 * version if version else None,
                version * 10**6,
            )
            for version in range(serving + 1)
        )

    def add_camera(self, values):
        self.asked.append(("add", dict(values)))
        if "source" not in values:
            raise UserError("source: this key is missing; add it")
        if values["id"] in self.cameras:
            raise UserError(f"there is a camera {values['id']} already; choose another id")
        self.cameras[values["id"]] = replace(
            _CAMERA, id=values["id"], accuracy=None, audited=None, model_version=0
        )
        return self.waits

    def remove_camera(self, camera):
        self._known(camera)
        self.asked.append(("remove", camera))
        del self.cameras[camera]

    def pause_camera(self, camera):
        if self.held is not None:
            self.held.wait(HANG_GUARD_S)
        self._change("pause", camera, state="paused", reason="paused by an operator")

    def resume_camera(self, camera):
        self._change("resume", camera, state="serving", reason="")
        return self.waits

    def change_camera(self, camera, values):
        self._known(camera)
        self.asked.append(("change", camera, dict(values)))

    def change_fleet(self, values):
        self.asked.append(("fleet", dict(values)))
        return values.get("gpus") == 2

    def add_class(self, name):
        self.asked.append(("class", name))
        if name == "zeppelin":
            raise UserError("key 'classes': the golden detector knows no 'zeppelin'")

    def freeze_model(self, camera, frozen):
        self._change("freeze" if frozen else "unfreeze", camera, frozen=frozen)

    def roll_back(self, camera, version=None):
        serving = self._known(camera).model_version
        if version is not None:
            if version >= serving:
                raise UserError(f"{camera}: versions beside the serving one that are kept: 0, 1")
            self._change(("roll-back", version), camera, model_version=version)
            return self.waits
        if serving == 0:
            raise UserError(f"{camera} has no previous model; it serves its base model")
        self._change("roll-back", camera, model_version=serving - 1)
        return self.waits

    def forget_pictures(self, camera):
        self._change("forget", camera)

    def lending(self):
        room = Room(SiteName("fake"), 100, (0.01, 0.02), LINEAR)
        return SimpleNamespace(
            folder=None,
            spare_room=lambda *_: room,
            read_progress=lambda _: LentProgress(epochs=(EpochResult(1, 0.5, 2.0),)),
        )

    def ask_labels(self, camera):
        self._change("labels", camera)

    def _known(self, camera):
        if camera not in self.cameras:
            raise NotThereError(f"there is no camera {camera!r}")
        return self.cameras[camera]

    def _change(self, what, camera, **changes):
        self.cameras[camera] = replace(self._known(camera), **changes)
        self.asked.append((what, camera))
