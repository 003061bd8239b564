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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol, Self

import msgpack

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import mask_passwords
from ekya.streams.ingest.frame import Frame, LiveSource, StreamSource, Truth
from ekya.streams.ingest.frame_transport import FrameHeader, MessageKind, SlotReader, unpack_messages

_log = logging.getLogger(__name__)

_PIPE_BYTES = 65536
_LAST_WORDS_BYTES = 300
_GRACE_S = 1.0

_KEPT_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(32 << 20))
"""Otherwise glibc gives each picture's pages back and fetches new ones, a third of a small one's time."""

_HUNG_S = 75.0
"""A process that has given frames, and then for so long neither one nor another message, hangs.

Longer than the longest ``stall_s``, within which a camera's own process notices that it is lost."""

_HUNG_FRAMES = 5
"""A source of few frames may take longer: the time of this number of frames."""


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
    """A source in a child process: ``start_frames``, ``poll_frames`` until ``ended``, then ``close``.

    The child ends when this process does, also when this process is killed.

    Attributes:
        died: how the process died before its last frame, in words; None if it has not.
        refused: True if it ended with an error that the user has to correct; ``died`` holds the error.
        lost: reason why a live camera currently gives no frames, in words; None while it does.
        damaged: number of frames so far that could not be decoded.
        length_s: of a recording, in seconds, once it is open; None if it is not known, or endless.
        areas: where objects of its next frames count.
    """

    def __init__(
        self,
        spec: SourceSpec,
        classes: tuple[str, ...],
        now_s: Callable[[], float] = time.monotonic,
        areas: Areas = WHOLE_PICTURE,
    ) -> None:
        """Starts the process, which opens the source.

        Args:
            spec: the source to open.
            classes: the fleet's classes.
            now_s: clock by which a process hangs; tests pass their own.
            areas: where its objects count.
        """
        self._now_s, self.areas = now_s, areas
        self.died: str | None = None
        self.refused = False
        self.lost: str | None = None
        self.damaged = 0
        self.length_s: float | None = None
        self._json = spec.model_dump_json()
        # Anonymous memory is freed with its last user, without clean-up.
        self._memory = os.memfd_create("ekya-frames")
        self._slots = SlotReader(self._memory)
        # Not a pipe: it is not read while the process runs, and a full one would block the decoder.
        self._errors = os.memfd_create("ekya-errors")
        self._pipe, child_pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: no module in the current folder may take the place of an installed one.
                [sys.executable, "-P", "-m", "ekya.streams.ingest.process_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(self._memory, child_pipe),
                start_new_session=True,  # only the parent handles Ctrl-C
                env=_child_environment(),
            )
        finally:
            # While this process held the child's end, the child's death would not end the pipe.
            os.close(child_pipe)
        os.set_blocking(self._pipe, False)
        self._received = msgpack.Unpacker()
        self._fps: float | None = None
        self._finished = False
        self._on_demand = False
        self._closed = False
        # Time of its last message; None before its first frame, which may be far into a recording.
        self._heard_s: float | None = None
        self._send(
            memory_fd=self._memory,
            pipe_fd=child_pipe,
            module=type(spec).__module__,
            type=type(spec).__qualname__,
            spec=self._json,
            classes=classes,
        )

    @property
    def pid(self) -> int:
        """Process id, for monitoring."""
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Processor time that the process has used, in seconds; 0.0 once it is gone."""
        # Linux's number of a process's clock; /proc counts in hundredths of a second, ten small frames.
        with suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | 2)
        return 0.0

    @property
    def ended(self) -> bool:
        """True when no more frames will come: all were polled, or the process died."""
        return self._finished or self.died is not None

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
        if self.refused:
            raise UserError(self.died)
        failed = f"source {mask_passwords(self._json)}: its process failed"
        remedy = "convert or replace the file, or remove this stream."
        if self.died is not None:
            raise SourceDiedError(f"{failed} ({self.died}); {remedy}")
        raise UserError(f"{failed} (it did not open within {timeout_s:g} s); {remedy}")

    def start_frames(
        self,
        started_monotonic_ns: int | None,
        from_index: int = 0,
        only: Sequence[int] | None = None,
        from_us: int = 0,
    ) -> None:
        """Starts the delivery of frames.

        Args:
            started_monotonic_ns: ``time.monotonic_ns()`` at stream time 0, at which the pace of delivery
                begins. It may lie in the future, and lies in the past for a source that replaces one that
                died. None for on demand, which a live source does not support. A live source's frames are
                stamped with their arrival time, and those before the start are left out.
            from_index: first frame to report. A source that replaces a dead one begins after the last
                polled frame, so that every frame is reported once.
            only: of a source on demand, the frames to report; None for all.
            from_us: of a recording that is paced, the stream time before which no frame is reported.
        """
        self._on_demand = started_monotonic_ns is None
        begin = {"from_index": from_index, "only": None if only is None else list(only), "from_us": from_us}
        self._send(started_monotonic_ns=started_monotonic_ns, **begin)

    def poll_frames(self, timeout_s: float) -> list[Arrived]:
        """Returns all frames that arrived since the last call, in order.

        Paced, only the last of them has pixels; on demand, all have. Waits up to ``timeout_s`` for the first;
        an empty list means that none arrived, or that none will (``ended``). Paced, a process that hangs is
        killed, and has died then.
        """
        deadline = time.monotonic() + timeout_s
        headers = self._receive(timeout_s)
        while not headers and not self.ended and (left_s := deadline - time.monotonic()) > 0:
            headers = self._receive(left_s)
        if not headers:
            self._end_hung()
        areas = self.areas
        arrived = []
        for header in headers:
            image = self._slots.read_frame(header) if self._on_demand or header is headers[-1] else None
            size, boxes, truth = (header.width, header.height), header.boxes, header.truth
            if boxes is not None:
                boxes = boxes[areas.find_counting(boxes, size)]
            frame = None if image is None else Frame(header.index, header.t_us, image, boxes, areas)
            truth = None if truth is None else truth.in_areas(areas, size)
            arrived.append(Arrived(header.index, header.t_us, header.released_ns, frame, truth))
        if self._on_demand:
            for _ in headers:
                self._send()
        return arrived

    def frames(
        self, from_index: int = 0, only: Sequence[int] | None = None
    ) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields every frame on demand from an index on; stops when the source ends or dies (see ``died``).

        Args:
            from_index: the first.
            only: the frames to yield; None for all.

        Raises:
            UserError: as ``wait_open``, but not if the process died; or it is refused at its first frame.
        """
        with suppress(SourceDiedError):
            self.wait_open()
            self.start_frames(None, from_index, only)
        begun = False
        while not self.ended:
            for arrived in self.poll_frames(_GRACE_S):
                begun = True
                if arrived.frame is not None:
                    yield arrived.frame, arrived.truth
        if self.refused and not begun:
            raise UserError(self.died)

    def close(self) -> None:
        """Ends the process and releases its resources. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._exit_code()
        for fd in (self._pipe, self._memory, self._errors):
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, **request: object) -> None:
        # If the process died, the next read from its pipe reports that.
        with suppress(BrokenPipeError, ValueError):
            self._input.write(json.dumps(request).encode() + b"\n")
            self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

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
            if self._heard_s is not None:
                self._heard_s = self._now_s()
            for kind, body in unpack_messages(self._received):
                if isinstance(body, FrameHeader):
                    self._heard_s = self._now_s()
                    self.damaged = body.damaged
                    headers.append(body)
                else:
                    self._note(kind, body)
        return headers

    def _note(self, kind: MessageKind, text: str) -> None:
        match kind:
            case MessageKind.OPENED:
                fps, *length_s = map(float, text.split())
                self._fps, self.length_s = fps, length_s[0] if length_s else None
            case MessageKind.ENDED:
                self.damaged = int(text)
                self._finished = True
            case MessageKind.REFUSED | MessageKind.FAILED:
                self.refused = kind is MessageKind.REFUSED
                self.died = text
            case MessageKind.NOTED:
                _log.warning("%s", text)
            case MessageKind.LOST | MessageKind.BACK:
                self.lost = text or None

    def _end_hung(self) -> None:
        """Kills the process if it has stopped: a decoder may wait for ever in a library."""
        if self.ended or self._closed or self._on_demand or self.lost is not None or self._heard_s is None:
            return
        limit_s = max(_HUNG_S, _HUNG_FRAMES / self._fps if self._fps else 0.0)
        if self._now_s() - self._heard_s > limit_s:
            self._process.kill()
            self.died = f"it gave no sign of life for {limit_s:g} s"

    def _note_death(self) -> None:
        """Records how the process died; called when the pipe closed without a last message."""
        code = self._exit_code()
        start = max(0, os.fstat(self._errors).st_size - _LAST_WORDS_BYTES)
        lines = os.pread(self._errors, _LAST_WORDS_BYTES, start).decode(errors="replace").strip().splitlines()
        said = mask_passwords(lines[-1].strip(), self._json) if lines else ""
        self.died = _in_words(code) + (f"; its last words: {said}" if said else "")

    def _exit_code(self) -> int:
        """Ends the process, by force after a grace period."""
        # The child exits by itself at the end of its input.
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def probe_source(spec: SourceSpec, classes: tuple[str, ...], timeout_s: float = 60.0) -> float:
    """Opens a source in a separate process and closes it again, to check before a run that it works.

    Returns:
        Frames a second of the source.

    Raises:
        UserError: the source cannot be opened.
    """
    with SourceProcess(spec, classes) as process:
        return process.wait_open(timeout_s)


def _child_environment() -> dict[str, str]:
    # A decoder on the GPU is no MPS client: their number has a limit, and the fault of one ends all.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | _KEPT_MEMORY


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
