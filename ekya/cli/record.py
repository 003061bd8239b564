"""``ekya record``: records a fleet's live cameras as videos, with a fleet file that plays them."""

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import cv2

from ekya.cli.output import Output, bars_of
from ekya.cli.recorded_fleet import losses_of, recorded_fleet_text
from ekya.cli.run import FleetArguments, noticing_ctrl_c, require_credentials
from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.recorder import CameraRecorder, Recording
from ekya.streams.ingest.video_writer import SUFFIX
from ekya.system.files import user_errors, write_text_atomic

_LOG = logging.getLogger(__name__)

FLEET = "fleet.yaml"
"""Name of the fleet file in the folder of the videos."""

_LEAST_WINDOWS = 2
_TO_BEGIN_S = 0.3
_TURN_S = 0.2
_TELL_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class RecordArguments:
    """Arguments of the command line apart from the fleet.

    Attributes:
        out: folder of the videos and the fleet file.
        seconds: duration; None takes that of the fleet's windows.
        overwrite: replace an existing recording.
    """

    out: Path
    seconds: float | None = None
    overwrite: bool = False


def record_cameras(arguments: FleetArguments, said: RecordArguments, output: Output) -> bool:
    """Records the cameras, then writes the fleet file.

    Returns:
        Whether every camera was recorded to the end.

    Raises:
        UserError: the fleet has no live cameras, files exist already, the folder cannot be written to, or no
            camera gives a picture.
        KeyboardInterrupt: after Ctrl-C; what was recorded until then is in the files.
    """
    fleet = arguments.read()
    cameras = {stream.id: stream.source for stream in fleet.streams if isinstance(stream.source, CameraSpec)}
    if not cameras:
        raise UserError(
            f"{arguments.fleet or 'the shipped fleet'}: it has no live camera to record; name a fleet file "
            "that has one, or a camera with --camera"
        )
    require_credentials(fleet)
    seconds = _seconds(fleet, said.seconds)
    files = {stream: said.out / f"{stream}{SUFFIX}" for stream in cameras}
    _require_room(said, [*files.values(), said.out / FLEET])
    if seconds < _LEAST_WINDOWS * fleet.window_s:
        _LOG.warning(
            "%g s hold fewer than %d windows of %g s, and only in the second a model is retrained",
            seconds,
            _LEAST_WINDOWS,
            fleet.window_s,
        )
    _prepare_opencv()
    with noticing_ctrl_c(), ExitStack() as stack:
        session = _Session({stream: CameraRecorder(stream, source) for stream, source in cameras.items()})
        for recorder in session.recorders.values():
            stack.callback(recorder.close)
        interrupted = session.run(files, seconds, output)
    recorded, left_out = session.recorded, session.left_out
    if not recorded:
        if interrupted:
            raise KeyboardInterrupt
        raise UserError(f"nothing was recorded: {_told(left_out)}")
    path = said.out / FLEET
    write_text_atomic(path, recorded_fleet_text(fleet, recorded, left_out, path))
    output.report(_contents(path, recorded, left_out))
    output.console.print(_in_words(path, recorded, left_out), highlight=False, soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt
    return not left_out and all(one.problem is None for one in recorded.values())


def _seconds(fleet: FleetConfig, said: float | None) -> float:
    if said is not None:
        if not 0.0 < said < math.inf:
            raise UserError(f"--for {said:g}: this is no time to record; give seconds above 0")
        return said
    if fleet.windows is None:
        raise UserError(
            "--for: the fleet file does not say how many windows to run; say how many seconds to record"
        )
    return fleet.windows * fleet.window_s


def _require_room(said: RecordArguments, files: list[Path]) -> None:
    """Creates the folder; refuses one that cannot be written to or that already holds a recording."""
    with user_errors(said.out):
        said.out.mkdir(parents=True, exist_ok=True)
        if not os.access(said.out, os.W_OK):
            raise PermissionError(13, "not writable")
    there = [file for file in files if file.exists()]
    if there and not said.overwrite:
        raise UserError(
            f"--out {said.out}: {there[0].name} is there already; name another folder, or add --overwrite"
        )


def _prepare_opencv() -> None:
    """Uses one OpenCV thread per camera, and silences OpenCV's message per frame that cannot be written."""
    cv2.setNumThreads(1)
    os.environ["OPENCV_FFMPEG_LOGLEVEL"] = "-8"
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)


@dataclass(eq=False)
class _Session:
    """One recording of all cameras, with a thread per camera; OpenCV and pipe I/O release the GIL.

    Attributes:
        recorders: one per camera.
        recorded: results of the cameras that gave pictures.
        left_out: reasons of the others.
    """

    recorders: Mapping[StreamId, CameraRecorder]
    recorded: dict[StreamId, Recording] = field(default_factory=dict)
    left_out: dict[StreamId, str] = field(default_factory=dict)
    _failed: list[Exception] = field(default_factory=list)

    def run(self, files: Mapping[StreamId, Path], seconds: float, output: Output) -> bool:
        """Records all cameras; returns whether Ctrl-C ended the recording early.

        Raises:
            UserError: no camera responds.
        """
        stop = threading.Event()
        _LOG.info("looking for %d cameras", len(self.recorders))
        silent = {
            stream: why for stream, one in self.recorders.items() if (why := one.wait_picture()) is not None
        }
        if len(silent) == len(self.recorders):
            raise UserError(f"no camera gives a picture: {_told(silent)}")
        started_ns = time.monotonic_ns() + round(_TO_BEGIN_S * 1e9)
        threads = [
            threading.Thread(target=self._record, args=(stream, file, started_ns, seconds, stop), name=stream)
            for stream, file in files.items()
        ]
        interrupted = False
        for thread in threads:
            thread.start()
        try:
            self._watch(threads, started_ns, seconds, output)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for failure in self._failed:
            raise failure
        return interrupted

    def _record(
        self, stream: StreamId, file: Path, started_ns: int, seconds: float, stop: threading.Event
    ) -> None:
        try:
            recording = self.recorders[stream].record(file, started_ns, seconds, stop)
        except (UserError, OSError) as error:
            self.left_out[stream] = str(error)
            _LOG.warning("%s is not recorded: %s", stream, error)
        except Exception as error:
            self._failed.append(error)
        else:
            self.recorded[stream] = recording
            if recording.problem is not None:
                _LOG.warning("%s ends after %.1f s: %s", stream, recording.duration_s, recording.problem)

    def _watch(
        self, threads: list[threading.Thread], started_ns: int, seconds: float, output: Output
    ) -> None:
        """Shows progress until all threads end: bars on a terminal, log lines elsewhere."""
        told_s = 0.0
        with bars_of(output.console) as bars:
            tasks = {
                stream: bars.add_task(f"{stream}: frames", total=round(seconds * recorder.fps))
                for stream, recorder in self.recorders.items()
            }
            while any(thread.is_alive() for thread in threads):
                time.sleep(_TURN_S)
                for stream, task in tasks.items():
                    bars.update(task, completed=self.recorders[stream].slots)
                passed_s = (time.monotonic_ns() - started_ns) / 1e9
                if not output.console.is_terminal and passed_s >= told_s + _TELL_EVERY_S:
                    told_s = passed_s
                    _LOG.info("recorded %.0f of %g s", min(passed_s, seconds), seconds)


def _contents(
    path: Path, recorded: Mapping[StreamId, Recording], left_out: Mapping[StreamId, str]
) -> dict[str, object]:
    """Returns the recordings as JSON values."""
    return {
        "fleet": str(path),
        "streams": {
            stream: {
                "file": str(one.file),
                "seconds": round(one.duration_s, 3),
                "fps": one.fps,
                "frames": one.frames,
                "repeated": one.repeated,
                "width": one.width,
                "height": one.height,
                "mb": round(one.size_bytes / 1e6, 3),
                "mb_per_minute": round(_mb_a_minute(one), 3),
                "lost": [
                    {"at_s": lost.at_s, "for_s": lost.for_s, "reason": gap.reason}
                    for gap, lost in zip(one.gaps, losses_of(one), strict=True)
                ],
                "problem": one.problem,
            }
            for stream, one in sorted(recorded.items())
        },
        "left_out": dict(sorted(left_out.items())),
    }


def _in_words(path: Path, recorded: Mapping[StreamId, Recording], left_out: Mapping[StreamId, str]) -> str:
    lines = []
    for stream, one in sorted(recorded.items()):
        lost_s = sum(lost.for_s for lost in losses_of(one))
        lost = f", lost for {lost_s:.1f} s" if one.gaps else ""
        lines.append(
            f"{stream}: {one.duration_s:.1f} s, {one.frames} frames of {one.width}x{one.height}{lost}, "
            f"{one.size_bytes / 1e6:.1f} MB ({_mb_a_minute(one):.0f} MB a minute)"
        )
    lines += [f"{stream}: left out; {why}" for stream, why in sorted(left_out.items())]
    return "\n".join([*lines, f"The fleet of these recordings: {path}"])


def _mb_a_minute(recording: Recording) -> float:
    return recording.size_bytes / 1e6 / recording.duration_s * 60


def _told(reasons: Mapping[StreamId, str]) -> str:
    return "; ".join(f"{stream}: {why}" for stream, why in sorted(reasons.items()))
