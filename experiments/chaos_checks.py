"""Invariants of a service under faults, as ``chaos.py`` checks them on what is on disk and in the kernel."""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ekya.control.journal_replay import replay_journal
from ekya.control.loop_state import LoopState, as_asked
from ekya.core.errors import UserError
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.hour_tables import next_rows
from ekya.results.storage.journal import read_header, read_steps
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import list_segments, segment_state

SHARED = Path("/dev/shm")
_MTIME_S = 0.1
"""A file's time comes from a coarser clock, which is behind."""


@dataclass(slots=True, eq=False)
class Answers:
    """The sink's file, read as it grows: whether the numbers of each camera's answers rise.

    Attributes:
        path: of the file.
        newest: number of the newest answer by camera.
        counts: number of answers by camera.
        ids: of all answers.
        uncut: of the answers since the last power cut; frames that one takes are numbered again.
        deaths: of the service process so far; after each, answers of a camera may come again once.
        again: number of times that answers came again
    """

    path: Path
    newest: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    uncut: set[str] = field(default_factory=set)
    deaths: int = 0
    again: int = 0
    _forgiven: dict[str, int] = field(default_factory=dict)
    _at: int = 0
    _rest: bytes = b""

    def read(self, deaths: int) -> Iterator[str]:
        """Reads what has come since the last call; yields what is out of order, in words."""
        self.deaths = max(self.deaths, deaths)
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._line(line)

    def _line(self, line: bytes) -> Iterator[str]:
        try:
            name = json.loads(line)["id"]
            camera, _, number = name.rpartition("/")
        except (ValueError, KeyError, TypeError):
            yield f"a line of the sink is no answer: {line[:80]!r}"
            return
        frame, newest = int(number), self.newest.get(camera, -1)
        if frame <= newest:
            self.again += 1
            if self._forgiven.get(camera, 0) >= self.deaths:
                yield f"{camera}/{frame} came after {camera}/{newest}, and the service had not died since"
            self._forgiven[camera] = self.deaths
        self.ids.add(name)
        self.uncut.add(name)
        self.newest[camera] = frame
        self.counts[camera] = self.counts.get(camera, 0) + 1


def journal_wrong(folder: RunFolder, since_s: float = 0.0) -> list[str]:
    """Returns what is wrong in a journal: other commands, or shares above the capacity.

    Args:
        folder: of the service.
        since_s: wall-clock time; segments that were written before it alone are left out. A start begins
            another, and may cut and number again those after its snapshot.
    """
    paths = [folder.journal_segment(number) for number in list_segments(folder)]
    return [said for path in paths if _written_s(path) >= since_s for said in _segment_wrong(path)]


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime + _MTIME_S
    except FileNotFoundError:  # removed meanwhile
        return float("-inf")


def _segment_wrong(path: Path) -> list[str]:
    try:
        scheduler, options = read_header(path)
        with path.open("rb") as file:
            header = len(file.readline())
        steps, state = read_steps(path, header), segment_state(path)
    except UserError as error:
        return [f"replay: {error}"] if path.exists() else []
    chosen = make_scheduler(scheduler)
    for number, done in enumerate(replay_journal(steps, options, chosen.needs, chosen.plan, state)):
        if not done.same:
            return [f"replay: step {number} of {path.name} gives other commands"]
        capacity_milli = as_asked(options, done.state.fleet).capacity_milli
        if (granted := granted_milli(done.state)) > capacity_milli:
            at_s = done.recorded.now_us / 1e6
            return [f"shares: {granted} of {capacity_milli} thousandths at {at_s:.1f} s ({path.name})"]
    return []


def frames_wrong(folder: RunFolder, ids: Collection[str], unbroken: Collection[str]) -> Iterator[str]:
    """Yields what is lost of a service that was stopped in order: frames on disk, or their answers.

    Args:
        folder: of the service.
        ids: of the answers in the sink.
        unbroken: cameras that were never paused or added, so that their frames on disk have no gap.
    """
    for hours in sorted((folder.path / "predictions").iterdir()):
        camera, frame, gaps, missing = hours.name, -1, 0, 0
        while (rows := next_rows(hours, frame)) is not None:
            numbers = rows.frame.tolist()
            gaps += sum(after != before + 1 for before, after in pairwise((frame, *numbers)))
            answered = rows.frame[rows.answered_by == rows.frame].tolist()
            missing += sum(f"{camera}/{number}" not in ids for number in answered)
            frame = numbers[-1]
        if gaps and camera in unbroken:
            yield f"frames: {camera} has {gaps} gaps on disk"
        if missing:
            yield f"frames: {missing} answers of {camera} are on disk and not in the sink"


def granted_milli(state: LoopState) -> int:
    """Returns the sum of all shares by the commands so far: inference, retraining, preparation, lent."""
    fleet = state.fleet
    streams = sum(
        one.inference_share_milli + (one.job.share_milli if one.job is not None else 0)
        for one in fleet.streams
    )
    preparing = 0 if fleet.preparation is None else fleet.preparation.share_milli
    return streams + preparing + fleet.lent_milli


def shared_memory() -> set[str]:
    """Returns the names of this user's shared memory that no process maps."""
    mine = set()
    for path in SHARED.iterdir():
        with suppress(OSError):
            if path.stat().st_uid == os.getuid():
                mine.add(path.name)
    if mine:
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                mine -= {name for name in mine if str(SHARED / name) in text}
    return mine
