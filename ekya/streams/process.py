"""A source in a process of its own: a file that aborts its decoder takes nothing else down.

``SourceProcess`` is the reader's side. Paced, it is a camera: frames come at their time, the newest
frame wins, and frames that were passed over are still reported, without their pixels. On demand, it
is a recording: every frame comes with its pixels, as fast as they are taken. A live source is a camera.
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

from ekya.errors import UserError
from ekya.streams.credentials import masked
from ekya.streams.frame import Frame, LiveSource, StreamSource, Truth
from ekya.streams.handover import FrameHeader, MessageKind, SlotReader, Unpacker, unpack_frame

_log = logging.getLogger(__name__)

_PIPE_BYTES = 65536
_LAST_WORDS_BYTES = 300
_GRACE_S = 1.0


class SourceDiedError(UserError):
    """A source's process died before the source was open; another one may live."""


class SourceSpec(Protocol):
    """What a fleet file says about a source: a pydantic model at the top level of its module."""

    @property
    def gives_truth(self) -> bool:
        """Whether its frames come with the boxes of their objects and their ``Truth``.

        Where they do not, a detector finds objects, and the golden model says afterwards what they were.
        """

    @property
    def live(self) -> bool:
        """Whether its frames come once, when they happen, and cannot be read again from the start.

        Such a source sets its own pace, and only a run on the wall clock can use it.
        """

    def model_dump_json(self) -> str:
        """The specification as JSON, from which its type can be made again elsewhere."""

    def open(self, classes: tuple[str, ...]) -> StreamSource | LiveSource:
        """The source itself, a ``LiveSource`` where it is live."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Frames are released when the clock reaches started + t_us.

    Attributes:
        started_monotonic_ns: ``time.monotonic_ns()`` at stream time 0; may lie in the future, and
            does lie in the past for a source that takes over from one that died.
    """

    started_monotonic_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A frame that arrived.

    Attributes:
        index, t_us: as in ``Frame``.
        released_ns: monotonic time at which the source handed it over.
        frame: the frame, or None when a newer one had arrived before it was taken.
        truth: for scoring, also of frames that were passed over; None where nobody knows it.
    """

    index: int
    t_us: int
    released_ns: int
    frame: Frame | None
    truth: Truth | None


class SourceProcess:
    """A source that runs elsewhere: make it, ``wait_open``, ``begin``, ``poll`` till ``ended``, ``close``.

    The process ends by itself when this one does, however this one ends.
    """

    def __init__(self, spec: SourceSpec, classes: tuple[str, ...]) -> None:
        """Start the process and let it open the source.

        Args:
            spec: what to open.
            classes: the fleet's classes.
        """
        self._spec = spec
        self._memory = _anonymous_memory()
        self._slots = SlotReader(self._memory)
        self._errors = _anonymous_memory()
        self._pipe, child_pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ekya.streams.process_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(self._memory, child_pipe),
                start_new_session=True,  # Ctrl-C is for the parent to answer
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENCV_FFMPEG_LOGLEVEL": "-8"},
            )
        finally:
            os.close(child_pipe)
        os.set_blocking(self._pipe, False)
        self._unpacker = Unpacker()
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
        """Number of the process, for whoever looks after it."""
        return self._process.pid

    @property
    def died(self) -> str | None:
        """How the process died before its frames were all there, in words; None while it has not."""
        return self._died

    @property
    def refused(self) -> bool:
        """Whether it ended for what the user has to put right; ``died`` says what."""
        return self._refused is not None

    @property
    def ended(self) -> bool:
        """Nothing more will come: all frames were polled, or the process died."""
        return self._ended or self._died is not None

    @property
    def lost(self) -> str | None:
        """Why a live camera gives nothing for now, in words; None while it gives frames."""
        return self._lost

    @property
    def damaged(self) -> int:
        """Frames so far that could not be decoded."""
        return self._damaged

    def wait_open(self, timeout_s: float = 60.0) -> float:
        """Wait until the source is open.

        Returns:
            Its frames a second.

        Raises:
            SourceDiedError: its process died of it, or was killed.
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
        """Let the frames come.

        Args:
            pace: when; None for on demand, which a live source cannot. A live source's frames have the time
                at which they came, and those that came before the start are left out.
            from_index: earlier frames are not reported. A source that takes over from a dead one
                begins behind the last frame that was polled, so that every frame is reported once.
        """
        self._on_demand = pace is None
        self._tell(
            {
                "started_monotonic_ns": pace.started_monotonic_ns if pace else None,
                "from_index": from_index,
            }
        )

    def poll(self, timeout_s: float) -> list[Arrived]:
        """All frames that arrived since the last call, in order.

        Paced, only the last of them has pixels. On demand, all have. Waits up to ``timeout_s``
        for the first; an empty list means that none came, or none will (``ended``).
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
        """Every frame on demand; ends where the source ends or dies (``died`` says which).

        Raises:
            UserError: as ``wait_open``, but not where the process died.
        """
        with suppress(SourceDiedError):
            self.wait_open()
            self.begin(None)
        while not self.ended:
            for arrived in self.poll(_GRACE_S):
                if arrived.frame is not None:
                    yield arrived.frame, arrived.truth

    def close(self) -> None:
        """End the process and give everything back. May be called twice."""
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
            return  # It died; the pipe from it says so to whoever reads next.

    def _receive(self, timeout_s: float) -> list[FrameHeader]:
        """Frames that are in the pipe, after at most one wait for the first byte."""
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
            for kind, body in self._unpacker.feed(data):
                if kind is MessageKind.FRAME:
                    header = unpack_frame(body)
                    self._damaged = header.damaged
                    headers.append(header)
                else:
                    self._note(kind, body.decode())
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
        """The pipe closed without a last message."""
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
    """Open a source elsewhere and close it again, to find out before a run whether it works.

    Returns:
        Its frames a second.

    Raises:
        UserError: it does not work.
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
    """A file descriptor of memory that vanishes with its last user; no name, so nothing to clean up."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ekya-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
