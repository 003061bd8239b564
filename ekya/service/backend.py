"""Backend of the HTTP server in a running service: facts, and changes of the fleet."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from ekya.config.fleet_reading import with_stream
from ekya.core.errors import NotThereError, UserError
from ekya.core.objects import SURE
from ekya.core.stream_faults import Status
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.fleet.run.live.lending_desk import LendingDesk
from ekya.models.edge.architecture_table import Task
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow
from ekya.results.storage.validation_files import KeptValidation, read_validation, validated_jobs
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.service.answers.messages import newest_message
from ekya.service.metrics import Exposition
from ekya.service.status import CameraStatus, RetrainingRow, Series, ServiceStatus
from ekya.service.status_keeper import StatusKeeper

_LOOKS, _SETTLED_LOOKS, _LOOK_S = 150, 10, 0.2
"""Looks at a camera until a change should show in its status, and until that is surely not of before it;
seconds between two."""

_COMING = (Status.SERVING, Status.RESTARTING)
_TRIED_AGAIN, _WITH_NEXT = "it stays, and is tried again", "the model serves with its next frame"


class ServiceBackend:
    """``Backend`` of a service.

    Args:
        control: of its run.
        keeper: of its status.
        metrics: of both.
        folder: of the service.
        classes: names of the fleet's classes.
        desk: lends to other services; None where this one does not.
    """

    def __init__(
        self,
        control: OperatorControl,
        keeper: StatusKeeper,
        metrics: Exposition,
        folder: RunFolder,
        classes: tuple[str, ...],
        desk: LendingDesk | None = None,
    ) -> None:
        self._control, self._keeper, self._metrics = control, keeper, metrics
        self._folder, self._classes, self._desk = folder, classes, desk

    def status(self) -> ServiceStatus:
        return self._keeper.status()

    def series(self, camera: str) -> Series:
        return self._keeper.series(camera)

    def retrainings(self, camera: str) -> tuple[RetrainingRow, ...]:
        rows = self._keeper.retrainings(camera)
        written_s = validated_jobs(self._folder, StreamId(camera))
        # Retrainings that ended in the window in which a service was killed share numbers with later ones.
        last = {row.job: at for at, row in enumerate(rows)}
        return tuple(
            replace(row, validated=written_s.get(JobId(row.job), 0.0) >= row.began_unix_s)
            if last[row.job] == at
            else row
            for at, row in enumerate(rows)
        )

    def read_validation(self, camera: str, job: int) -> KeptValidation:
        # First: the name becomes a part of a path.
        self._control.require_camera(StreamId(camera))
        return read_validation(self._folder, StreamId(camera), JobId(job))

    def metrics_text(self) -> bytes:
        return self._metrics.metrics_text()

    def newest_picture(self, camera: str) -> bytes | None:
        return self._control.picture(StreamId(camera))

    def newest_answer(self, camera: str) -> dict[str, object] | None:
        # First: the name becomes a part of a path, and a removed camera's answers are still on disk.
        self._control.require_camera(StreamId(camera))
        detects = self._control.fleet.edge.task is Task.DETECT
        least = SURE if detects else None
        message = newest_message(self._folder, StreamId(camera), self._classes, least)
        return None if message is None else cast(dict[str, object], message)

    def kept_models(self, camera: str) -> tuple[ModelRow, ...]:
        return self._control.models(StreamId(camera))

    def add_camera(self, values: Mapping[str, object]) -> str:
        stream = with_stream(self._control.fleet, values)
        self._control.add_camera(stream)
        return self._wait_until(stream.id, _TRIED_AGAIN, lambda now: now.frames_analysed > 0)

    def remove_camera(self, camera: str) -> None:
        self._control.remove_camera(StreamId(camera))

    def pause_camera(self, camera: str) -> None:
        if (now := self._find(camera)) is not None and now.state == Status.ENDED:
            raise UserError(f"{camera}: it has ended, so there is nothing to pause; remove it")
        self._control.pause_camera(StreamId(camera), True)

    def resume_camera(self, camera: str) -> str:
        before = self._find(camera)
        self._control.pause_camera(StreamId(camera), False)
        analysed = 0 if before is None else before.frames_analysed
        return self._wait_until(camera, _TRIED_AGAIN, lambda now: now.frames_analysed > analysed)

    def change_camera(self, camera: str, values: Mapping[str, object]) -> None:
        self._control.change_terms(StreamId(camera), values)

    def change_fleet(self, values: Mapping[str, object]) -> bool:
        return self._control.change_fleet(values)

    def add_class(self, name: str) -> None:
        self._control.add_class(name)

    def freeze_model(self, camera: str, frozen: bool) -> None:
        self._control.freeze_model(StreamId(camera), frozen)

    def roll_back(self, camera: str, version: int | None = None) -> str:
        before = self._find(camera)
        self._control.roll_back(StreamId(camera), None if version is None else ModelVersion(version))
        version = BASE_VERSION if before is None else before.model_version
        return self._wait_until(camera, _WITH_NEXT, lambda now: now.model_version > version)

    def forget_pictures(self, camera: str) -> None:
        self._control.forget_pictures(StreamId(camera))

    def ask_labels(self, camera: str) -> None:
        now = self._keeper.status().camera(camera)
        if now.frozen:
            raise UserError(f"{camera}: it keeps its model, so it is not labelled; unfreeze it first")
        if now.state != Status.SERVING:
            raise UserError(f"{camera}: it is {now.state}, so it shows nothing to label")
        self._control.ask_labels(StreamId(camera))

    def lending(self) -> LendingDesk | None:
        return self._desk

    def _find(self, camera: str) -> CameraStatus | None:
        """Returns a camera's status; None before the loop knows it."""
        try:
            return self._keeper.status(since_start=True).camera(camera)
        except NotThereError:
            return None

    def _wait_until(self, camera: str, then: str, holds: Callable[[CameraStatus], bool]) -> str:
        """Waits until something holds of a camera; returns nothing, or why not, and what is ``then``."""
        now = None
        for look in range(_LOOKS):
            now = self._find(camera)
            if now is not None and holds(now):
                return ""
            if now is not None and look >= _SETTLED_LOOKS and now.state not in _COMING:
                break
            time.sleep(_LOOK_S)
        if now is None or now.state in _COMING:
            return f"{camera} has not answered within {_LOOKS * _LOOK_S:g} s; {then}: see ekya ctl status"
        if now.state == Status.ENDED:
            return f"{camera} has ended, since its recording is over; loop it (play.loop), or remove it"
        return f"{camera} is {now.state} ({now.reason}); {then}"
