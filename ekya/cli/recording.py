"""Recording of several live cameras at the same time, with their progress."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from rich.console import Console

from ekya.cli.command import open_bars
from ekya.config.files import relative_paths
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.config.fleet_sections import StreamConfig
from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, StreamId
from ekya.models.golden.spec import FILE
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.playing import Lost
from ekya.streams.ingest.recorder import CameraRecorder, Recording

_LOG = logging.getLogger(__name__)

_TO_BEGIN_S = 0.3
_DRAWN_EVERY_S = 0.2
_LOGGED_EVERY_S = 10.0


class CameraRecording:
    """One recording of all cameras, with a thread per camera; OpenCV and pipe I/O release the GIL.

    Attributes:
        recorded: results of the cameras that gave pictures.
        left_out: reasons of the others.

    Args:
        cameras: to record.
    """

    def __init__(self, cameras: Mapping[StreamId, CameraSpec]) -> None:
        self.recorded: dict[StreamId, Recording] = {}
        self.left_out: dict[StreamId, str] = {}
        self._recorders = {stream: CameraRecorder(stream, source) for stream, source in cameras.items()}
        self._failed: list[Exception] = []

    def close(self) -> None:
        """Closes the connections to the cameras."""
        for recorder in self._recorders.values():
            recorder.close()

    def run(self, files: Mapping[StreamId, Path], seconds: float, console: Console) -> bool:
        """Records all cameras; returns whether Ctrl-C ended the recording early.

        Raises:
            UserError: no camera responds.
        """
        stop = threading.Event()
        _LOG.info("connecting to %d cameras", len(self._recorders))
        silent = {
            stream: why for stream, one in self._recorders.items() if (why := one.wait_picture()) is not None
        }
        if len(silent) == len(self._recorders):
            raise UserError(f"no camera gives a picture: {reasons_in_words(silent)}")
        started_ns = time.monotonic_ns() + round(_TO_BEGIN_S * 1e9)
        threads = [
            threading.Thread(target=self._record, args=(stream, file, started_ns, seconds, stop), name=stream)
            for stream, file in files.items()
        ]
        interrupted = False
        for thread in threads:
            thread.start()
        try:
            self._show_progress(threads, started_ns, seconds, console)
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
            recording = self._recorders[stream].record_video(file, started_ns, seconds, stop)
        except (UserError, OSError) as error:
            self.left_out[stream] = str(error)
            _LOG.warning("%s is not recorded: %s", stream, error)
        except Exception as error:
            self._failed.append(error)
        else:
            self.recorded[stream] = recording
            if recording.problem is not None:
                _LOG.warning("%s ends after %.1f s: %s", stream, recording.duration_s, recording.problem)

    def _show_progress(
        self, threads: Sequence[threading.Thread], started_ns: int, seconds: float, console: Console
    ) -> None:
        """Shows progress until all threads end: bars on a terminal, log lines elsewhere."""
        logged_s = 0.0
        with open_bars(console) as bars:
            tasks = {
                stream: bars.add_task(f"{stream}: frames", total=round(seconds * recorder.fps))
                for stream, recorder in self._recorders.items()
            }
            while any(thread.is_alive() for thread in threads):
                time.sleep(_DRAWN_EVERY_S)
                for stream, task in tasks.items():
                    bars.update(task, completed=self._recorders[stream].slots)
                passed_s = (time.monotonic_ns() - started_ns) / 1e9
                if not console.is_terminal and passed_s >= logged_s + _LOGGED_EVERY_S:
                    logged_s = passed_s
                    _LOG.info("recorded %.0f of %g s", min(passed_s, seconds), seconds)


def reasons_in_words(reasons: Mapping[StreamId, str]) -> str:
    """Returns why cameras were left out, in one line."""
    return "; ".join(f"{stream}: {why}" for stream, why in sorted(reasons.items()))


_LOG = logging.getLogger(__name__)


def find_losses(recording: Recording) -> tuple[Lost, ...]:
    """Returns the outages of a camera as script events: frames that only repeat the last picture."""

    def seconds(frames: int) -> float:
        # Same rounding as the time stamps of the video source.
        return round(frames * US_PER_S / recording.fps) / US_PER_S

    return tuple(
        Lost(at_s=seconds(gap.begin), for_s=round(seconds(gap.end) - seconds(gap.begin), 6))
        for gap in recording.gaps
    )


def recorded_fleet_text(
    fleet: FleetConfig, recorded: Mapping[StreamId, Recording], left_out: Mapping[StreamId, str], out: Path
) -> str:
    """Returns the fleet with recordings in place of its cameras, as YAML.

    Args:
        fleet: with cameras.
        recorded: their files, in the folder of the fleet file.
        left_out: cameras without a recording, and the reason; the result does not contain them.
        out: path of the fleet file; paths in its folder are written relative to it.

    Raises:
        UserError: the recordings no longer exist.
    """
    raw = fleet.model_dump(mode="json", exclude_unset=True, exclude={"streams"})
    raw["streams"] = [
        _entry(fleet, stream, recorded.get(stream.id))
        for stream in fleet.streams
        if stream.id not in left_out
    ]
    folders = (out.parent.resolve(), shipped_root().resolve())
    portable = {key: relative_paths(value, folders) for key, value in raw.items()}
    parse_fleet(portable, str(out), folders)
    lines = ["# Live cameras as ekya record has seen them; where one was lost, its play.script says so."]
    lines += [f"# Left out: {stream}, {' '.join(why.split())}" for stream, why in sorted(left_out.items())]
    return "\n".join([*lines, yaml.safe_dump(portable, sort_keys=False, allow_unicode=True)])


def _entry(fleet: FleetConfig, stream: StreamConfig, recording: Recording | None) -> dict[str, object]:
    """Returns a stream's section, with the keys that were set."""
    raw: dict[str, object] = stream.model_dump(mode="json", exclude_unset=True)
    if recording is None:
        return raw
    raw.pop("play", None)
    size = {"max_side": stream.source.max_side} if isinstance(stream.source, CameraSpec) else {}
    raw["source"] = {"kind": "video", "files": [str(recording.file.resolve())], **size}
    losses = find_losses(recording)
    if fleet.golden.model != FILE:
        if losses:
            raw["play"] = {"script": [lost.model_dump(mode="json") for lost in losses]}
        return raw
    for lost in losses:
        _LOG.warning(
            "%s was lost at %.1f s for %.1f s, and its file repeats a picture there: with the golden "
            "model %r no script may say so",
            stream.id,
            lost.at_s,
            lost.for_s,
            FILE,
        )
    return raw
