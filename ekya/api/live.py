"""A live run in the background of a script or a notebook: its answers, changes to it, and its result."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich.console import Console

from ekya.api.fleets import Camera, Fleet
from ekya.api.live_answers import AnswerReader
from ekya.api.playing import LOGGED, with_gpus
from ekya.api.results import Finished, Report, Summary
from ekya.api.runnable import make_runnable
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_stream
from ekya.config.run_options import RunOptions
from ekya.config.scoring import Scoring
from ekya.core.errors import UserError
from ekya.core.units import ModelVersion, StreamId
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.storage.wall_clock import WallClock
from ekya.runtime.driver.live import run_live
from ekya.runtime.driver.open_run import OpenRun
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.service.answers.messages import Message

_LOG = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
"""Workers write answers once a second."""


def start(
    fleet: Fleet,
    scheduler: str | Scheduler | None = None,
    *,
    seed: int = 0,
    gpus: float | None = None,
    shares: str = "auto",
    dashboard: bool = False,
    address: str | None = None,
    overload: bool = False,
    score: str = Scoring.SAMPLE,
    runs: str | Path = "runs",
    name: str | None = None,
    console: Console = LOGGED,
) -> "Run":
    """Starts a live run on Ray actors, and returns when it has begun; used with ``with``.

    Args:
        fleet: to run.
        scheduler: its name, or an object; None takes the fleet's.
        seed: of all random draws.
        gpus: GPUs to use, in place of the fleet's; without a GPU, cores that stand for them.
        shares: backend that enforces GPU shares: ``auto``, ``mps``, ``duty-cycle`` or ``cpu``.
        dashboard: whether to start Ray's dashboard.
        address: ``auto`` or HOST:PORT of a Ray cluster of which this machine is a node; None starts a Ray of
            its own.
        overload: run even where not one frame a second of each camera fits.
        score: frames of unlabelled video on which the run is scored: ``sample`` or ``all``.
        runs: folder in which the run's folder is made.
        name: of the run; None takes the fleet's.
        console: where progress is shown.

    Raises:
        UserError: the fleet cannot be run here.
    """
    options = RunOptions(
        scheduler=scheduler or fleet.config.scheduler,
        seed=seed,
        runs=Path(runs),
        name=name,
        shares=shares,
        dashboard=dashboard,
        address=address,
        overload=overload,
        score=Scoring(score),
    )
    asked = gpus is not None
    config = make_runnable(with_gpus(fleet, gpus), options, console, live=True, gpus_asked_for=asked)
    run = Run(config, options, console)
    run._wait_begun()
    return run


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known of a run from its begin on."""

    opened: OpenRun
    control: OperatorControl
    clock: WallClock


@dataclass(slots=True, eq=False)
class Run:
    """A live run, from ``start``. The end of its ``with`` block ends it early, if it goes on.

    An exception and Ctrl-C do the same; what has happened until then is measured and written as usual. Any
    thread may call.

    Attributes:
        dropped: answers that ``answers`` left out, since they were read too slowly.
    """

    _fleet: FleetConfig
    _options: RunOptions
    _console: Console
    dropped: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _begun: _Begun | None = None
    _folder: Path | None = None
    _failed: BaseException | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ekya-run", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.stop()
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            # That of the block is told; this one may be its reason, or come of the same.
            _LOG.warning("the run has failed as well", exc_info=True)
        return False

    def _wait_begun(self) -> None:
        """Waits until the loop has begun; Ctrl-C ends the run meanwhile.

        Raises:
            UserError: it could not begin.
        """
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._begun is not None or self._is_over)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
            raise
        if self._begun is None:
            self.wait()

    def stop(self) -> None:
        """Has the run end early; ``wait`` waits until it has."""
        self._stop.set()

    def wait(self) -> Finished:
        """Waits until the run has ended and is measured, and returns its result.

        Raises:
            UserError: it could not begin, or failed.
        """
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        if self._folder is None:
            raise UserError("the run has ended before it began")
        return Finished(self._folder)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._known.opened.folder.path

    @property
    def summary(self) -> Summary:
        """Result of the run, which must have ended."""
        return Finished(self.folder).summary

    @property
    def report(self) -> Report:
        """Report of the run, which must have ended."""
        return Finished(self.folder).report

    def answers(self, most_waiting: int = 1000) -> Iterator[Message]:
        """Yields what is seen in each frame that is analysed, until the run ends: about a second afterwards.

        Answers wait on disk, so the run never waits for who reads them. Of more than ``most_waiting`` the
        oldest are dropped, and counted in ``dropped``.
        """
        begun = self._known
        reader = AnswerReader(begun.opened.folder, begun.opened.fleet, begun.clock)
        while True:
            is_over = self._is_over
            streams = [stream.id for stream in begun.control.fleet.streams]
            waiting = reader.read_all(streams) if is_over else reader.read_newer(streams)
            if (late := len(waiting) - most_waiting) > 0:
                self.dropped += late
                _LOG.warning("%d answers were read too slowly and are left out", late)
                del waiting[:late]
            yield from waiting
            if is_over:
                break
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, _LOOK_EVERY_S)
        if self._failed is not None:
            raise self._failed

    def add_camera(self, camera: Camera | str | Path) -> None:
        """Adds a camera; returns when its frames are analysed. A recording begins now.

        Raises:
            UserError: its id is taken, it does not fit the fleet, or it cannot be opened.
        """
        control = self._known.control
        camera = camera if isinstance(camera, Camera) else Camera(camera)
        values = camera.stream_values(len(control.fleet.streams) + 1)
        control.add_camera(with_stream(control.fleet, values))

    def remove_camera(self, camera: str) -> None:
        """Removes a camera; its records stay.

        Raises:
            NotThereError: there is none of this name.
            UserError: it is the last one.
        """
        self._known.control.remove_camera(StreamId(camera))

    def change_fleet(self, **values: object) -> None:
        """Changes terms of the fleet: ``scheduler``, ``gpus`` or ``min_accuracy``.

        Raises:
            UserError: a value is not possible.
        """
        self._known.control.change_fleet(values)

    def roll_back(self, camera: str, version: int | None = None) -> None:
        """Has a camera serve earlier weights again; None: those before the present ones.

        Raises:
            NotThereError: there is no such camera.
            UserError: there are no such weights.
        """
        self._known.control.roll_back(StreamId(camera), None if version is None else ModelVersion(version))

    @property
    def _is_over(self) -> bool:
        return self._folder is not None or self._failed is not None

    @property
    def _known(self) -> _Begun:
        if self._begun is None:
            raise UserError("the run has not begun")
        return self._begun

    def _run(self) -> None:
        """Is the run's thread."""
        folder: Path | None = None
        failed: BaseException | None = None
        try:
            folder = run_live(self._fleet, self._options, self._console, self._stop, self._attach)
        except BaseException as error:
            failed = error
        with self._changed:
            self._folder, self._failed = folder, failed
            self._changed.notify_all()

    def _attach(self, opened: OpenRun, control: OperatorControl) -> None:
        clock = WallClock(((control.now_us(), time.time_ns() // 1000),))
        with self._changed:
            self._begun = _Begun(opened, control, clock)
            self._changed.notify_all()
