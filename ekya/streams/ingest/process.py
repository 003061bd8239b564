"""Runs a source in a separate process, so that a file that aborts its decoder takes nothing else down.

``SourceProcess`` is the reader's side. Paced, it behaves as a camera: frames arrive at their time, only the
newest has pixels, and skipped frames are still reported without. On demand, it behaves as a recording: every
frame has pixels and comes as fast as frames are taken. A live source behaves as a camera.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

import msgpack

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import masked
from ekya.streams.ingest.frame import Frame, LiveSource, StreamSource, Truth
from ekya.streams.ingest.handover import FrameHeader, MessageKind, SlotReader, unpack

_log = logging.getLogger(__name__)

_PIPE_BYTES = 65536
_LAST_WORDS_BYTES = 300
_GRACE_S = 1.0


class SourceDiedError(UserError):
    """A source's process died before the source was open; a retry may succeed."""


class SourceSpec(Protocol):
    """Specification of a source in a fleet file: a pydantic model at the top level of its module."""

    @property
    def gives_truth(self) -> bool:
        """True if frames come with the boxes of their objects and their ``Truth``.

        Otherwise a detector finds objects, and the golden model labels them afterwards.
        """

    @property
    def live(self) -> bool:
        """True if frames come once, in real time, and cannot be read again from the start.

        Such a source sets the pace itself, and only a run on the wall clock can use it.
        """

    def model_dump_json(self) -> str:
        """Returns the specification as JSON, from which another process can rebuild it."""

    def open(self, classes: tuple[str, ...]) -> StreamSource | LiveSource:
        """Opens the source; a ``LiveSource`` if it is live."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of delivery: a frame is released when the clock reaches started + t_us.

    Attributes:
        started_monotonic_ns: ``time.monotonic_ns()`` at stream time 0; may lie in the future, and
            lies in the past for a source that replaces one that died.
    """

    started_monotonic_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A frame that arrived.

    Attributes:
        index, t_us: as in ``Frame``.
        released_ns: monotonic time at which the source handed it over.
        frame: the frame, or None if a newer one had arrived before it was taken.
        truth: ground truth for scoring, also of skipped frames; None if the source has none.
    """

    index: int
    t_us: int
    released_ns: int
    frame: Frame | None
    truth: Truth | None


class SourceProcess:
    """A source in a child process: construct, ``wait_open``, ``begin``, ``poll`` until ``ended``, ``close``.

    The child ends when this process does, also when this process is killed.
    """

    def __init__(self, spec: SourceSpec, classes: tuple[str, ...]) -> None:
        """Starts the process, which opens the source.

        Args:
            spec: the source to open.
            classes: the fleet's classes.
        """
        self._spec = spec
        self._memory = _anonymous_memory()
        self._slots = SlotReader(self._memory)
        self._errors = _anonymous_memory()
        self._pipe, child_pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ekya.streams.ingest.process_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(self._memory, child_pipe),
                start_new_session=True,  # only the parent handles Ctrl-C
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENCV_FFMPEG_LOGLEVEL": "-8"},
            )
        finally:
            os.close(child_pipe)
        os.set_blocking(self._pipe, False)
        self._received = msgpack.Unpacker()
        self._fps: float | None = None
        self._died: str | None = None
        self._refused: str | None = None
        self._lost: str | None = None
        self._damaged = 0
        self._ended = False
        self._on_demand = False
        self._closed = False
        kind = type(spec)
        self._tell(
            {
                "memory_fd": self._memory,
                "pipe_fd": child_pipe,
                "module": kind.__module__,
                "type": kind.__qualname__,
                "spec": spec.model_dump_json(),
                "classes": classes,
            }
        )

    @property
    def pid(self) -> int:
        """Process id, for monitoring."""
        return self._process.pid

    @property
    def died(self) -> str | None:
        """Description of how the process died before its last frame; None if it has not."""
        return self._died

    @property
    def refused(self) -> bool:
        """True if the process ended with an error that the user has to correct; ``died`` holds the error."""
        return self._refused is not None

    @property
    def ended(self) -> bool:
        """True when no more frames will come: all were polled, or the process died."""
        return self._ended or self._died is not None

    @property
    def lost(self) -> str | None:
        """Reason why a live camera currently gives no frames, in words; None while it does."""
        return self._lost

    @property
    def damaged(self) -> int:
        """Number of frames so far that could not be decoded."""
        return self._damaged

    def wait_open(self, timeout_s: float = 60.0) -> float:
        """Waits until the source is open.

        Returns:
            Frames a second of the source.

        Raises:
            SourceDiedError: the process died while opening the source.
            UserError: the source cannot be opened, or takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while self._fps is None and not self.ended and time.monotonic() < deadline:
            self._receive(deadline - time.monotonic())
        if self._fps is not None:
            return self._fps
        if self._refused is not None:
            raise UserError(self._refused)
        failed = f"source {masked(self._spec.model_dump_json())}: its process failed"
        remedy = "convert or replace the file, or remove this stream."
        if self._died is not None:
            raise SourceDiedError(f"{failed} ({self._died}); {remedy}")
        raise UserError(f"{failed} (it did not open within {timeout_s:g} s); {remedy}")

    def begin(self, pace: Pace | None, from_index: int = 0) -> None:
        """Starts the delivery of frames.

        Args:
            pace: pace of delivery; None for on demand, which a live source does not support. A live source's
                frames are stamped with their arrival time, and those before the start are left out.
            from_index: first frame to report. A source that replaces a dead one begins after the last
                polled frame, so that every frame is reported once.
        """
        self._on_demand = pace is None
        self._tell(
            {
                "started_monotonic_ns": pace.started_monotonic_ns if pace else None,
                "from_index": from_index,
            }
        )

    def poll(self, timeout_s: float) -> list[Arrived]:
        """Returns all frames that arrived since the last call, in order.

        Paced, only the last of them has pixels; on demand, all have. Waits up to ``timeout_s`` for the first;
        an empty list means that none arrived, or that none will (``ended``).
        """
        deadline = time.monotonic() + timeout_s
        headers = self._receive(timeout_s)
        while not headers and not self.ended and (left_s := deadline - time.monotonic()) > 0:
            headers = self._receive(left_s)
        if not headers:
            return []
        newest = headers[-1].index
        arrived = [self._arrived(header, header.index == newest) for header in headers]
        if self._on_demand:
            for _ in headers:
                self._tell({})
        return arrived

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields every frame on demand; stops when the source ends or dies (see ``died``).

        Raises:
            UserError: as ``wait_open``, but not if the process died.
        """
        with suppress(SourceDiedError):
            self.wait_open()
            self.begin(None)
        while not self.ended:
            for arrived in self.poll(_GRACE_S):
                if arrived.frame is not None:
                    yield arrived.frame, arrived.truth

    def close(self) -> None:
        """Ends the process and releases its resources. May be called twice."""
        if self._closed:
            return
        self._closed = True
        _close_input(self._process)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._pipe)
        os.close(self._memory)
        os.close(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _arrived(self, header: FrameHeader, newest: bool) -> Arrived:
        image = self._slots.read(header) if newest or self._on_demand else None
        frame = Frame(header.index, header.t_us, image, header.boxes) if image is not None else None
        return Arrived(header.index, header.t_us, header.released_ns, frame, header.truth)

    def _tell(self, order: dict[str, object]) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # The process died; the next read from its pipe reports that.

    def _receive(self, timeout_s: float) -> list[FrameHeader]:
        """Returns the frames that are in the pipe, after at most one wait for the first byte."""
        if self.ended or self._closed:
            return []
        select.select([self._pipe], [], [], max(0.0, timeout_s))
        headers: list[FrameHeader] = []
        while not self.ended:
            try:
                data = os.read(self._pipe, _PIPE_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._note_death()
                break
            self._received.feed(data)
            for kind, body in unpack(self._received):
                if isinstance(body, FrameHeader):
                    self._damaged = body.damaged
                    headers.append(body)
                else:
                    self._note(kind, body)
        return headers

    def _note(self, kind: MessageKind, text: str) -> None:
        match kind:
            case MessageKind.OPENED:
                self._fps = float(text)
            case MessageKind.ENDED:
                self._damaged = int(text)
                self._ended = True
            case MessageKind.REFUSED:
                self._refused = self._died = text
            case MessageKind.FAILED:
                self._died = text
            case MessageKind.NOTED:
                _log.warning("%s", text)
            case MessageKind.LOST:
                self._lost = text
            case MessageKind.BACK:
                self._lost = None

    def _note_death(self) -> None:
        """Records how the process died; called when the pipe closed without a last message."""
        _close_input(self._process)
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        start = max(0, os.fstat(self._errors).st_size - _LAST_WORDS_BYTES)
        lines = os.pread(self._errors, _LAST_WORDS_BYTES, start).decode(errors="replace").strip().splitlines()
        said = masked(lines[-1].strip(), self._spec.model_dump_json()) if lines else ""
        last = f"; its last words: {said}" if said else ""
        self._died = _in_words(code) + last


def probe_source(spec: SourceSpec, classes: tuple[str, ...], timeout_s: float = 60.0) -> float:
    """Opens a source in a separate process and closes it again, to check before a run that it works.

    Returns:
        Frames a second of the source.

    Raises:
        UserError: the source cannot be opened.
    """
    with SourceProcess(spec, classes) as process:
        return process.wait_open(timeout_s)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        try:
            process.stdin.close()
        except BrokenPipeError:
            return


def _anonymous_memory() -> int:
    """Returns a file descriptor of anonymous memory, which is freed with its last user without clean-up."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ekya-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
