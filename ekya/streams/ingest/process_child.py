"""Process in which a source runs: reads frames and hands them over, paced, live or on demand.

Started by ``ekya.streams.ingest.process`` as ``python -m ekya.streams.ingest.process_child``, which imports
neither ray nor torch. Standard input carries one JSON object a line: the source to open and the file
descriptors to write to;
then how to begin; then, on demand, one line for each frame taken. End of input means that the parent is gone.
"""

import importlib
import json
import logging
import logging.handlers
import os
import queue
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cv2

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import mask_passwords
from ekya.streams.ingest.frame import (
    CameraOutage,
    Frame,
    InterruptedSource,
    LiveSource,
    RecordedSource,
    Silence,
    StreamSource,
    Truth,
)
from ekya.streams.ingest.frame_transport import SLOTS, FrameHeader, MessageKind, SlotWriter, pack_message
from ekya.streams.ingest.process import SourceSpec

_Requests = queue.SimpleQueue[dict[str, Any]]

# Far below the time after which the parent takes this process for hung.
_ALIVE_EVERY_NS = 5_000_000_000


class _Outbox:
    """Queue of messages to the pipe; keeps what does not fit yet, so that writing never blocks.

    Also takes the warnings of a source, from all its threads, to the parent's log: this process has no log.
    """

    def __init__(self, pipe_fd: int) -> None:
        self._fd = pipe_fd
        self._waiting: deque[bytes] = deque()
        self._warnings: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        handler = logging.handlers.QueueHandler(self._warnings)
        handler.setLevel(logging.WARNING)
        logging.getLogger("ekya").addHandler(handler)
        os.set_blocking(pipe_fd, False)

    def put(self, kind: MessageKind, body: str | FrameHeader = "") -> None:
        """Sends a message, after the warnings logged since the last one."""
        while not self._warnings.empty():
            self._waiting.append(pack_message(MessageKind.NOTED, self._warnings.get().getMessage()))
        self._waiting.append(pack_message(kind, body))
        self._flush()

    def wait_until(self, due_ns: int) -> None:
        """Sleeps until a monotonic time, and sends waiting messages and signs of life meanwhile."""
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if self._waiting:
                select.select([], [self._fd], [], left_ns / 1e9)
                self._flush()
            elif left_ns < _ALIVE_EVERY_NS:
                time.sleep(left_ns / 1e9)
            else:
                time.sleep(_ALIVE_EVERY_NS / 1e9)
                self.put(MessageKind.ALIVE)

    def empty(self) -> None:
        """Blocks until all messages are in the pipe."""
        while self._waiting:
            select.select([], [self._fd], [])
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            try:
                sent = os.write(self._fd, self._waiting[0])
            except BlockingIOError:
                return
            except BrokenPipeError:
                os._exit(0)
            # Without blocking, a pipe takes the part of a message for which it has room.
            if sent < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][sent:]
            else:
                self._waiting.popleft()


def _listen(requests: _Requests) -> None:
    """Queues the parent's requests. Ends this process immediately when the parent is gone."""
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    # Not sys.exit, which would end only this thread.
    os._exit(0)


def _open(request: dict[str, Any]) -> StreamSource | LiveSource:
    spec_type = getattr(importlib.import_module(request["module"]), request["type"])
    spec: SourceSpec = spec_type.model_validate_json(request["spec"])
    return spec.open(tuple(request["classes"]))


class FrameSender:
    """Sends the frames of a source: paced, on demand or live."""

    def __init__(
        self,
        outbox: _Outbox,
        slots: SlotWriter,
        requests: _Requests,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._outbox = outbox
        self._slots = slots
        self._requests = requests
        self._now_ns = now_ns

    def send_frames(self, source: StreamSource | LiveSource) -> int:
        """Sends all frames, as the parent requests; returns the number of damaged ones."""
        if isinstance(source, LiveSource):
            self._live(source)
            return 0
        begin = self._requests.get()
        if begin["started_monotonic_ns"] is None:
            self._on_demand(source, begin["from_index"], begin["only"])
        else:
            self._paced(source, begin["started_monotonic_ns"], begin["from_index"], begin["from_us"])
        return source.damaged

    def _paced(self, source: StreamSource, started_ns: int, from_index: int, from_us: int) -> None:
        def wait_until(t_us: int) -> None:
            self._outbox.wait_until(started_ns + t_us * 1000)

        outage: CameraOutage | None = None
        for seen in source.frames_and_outages() if isinstance(source, InterruptedSource) else source.frames():
            if isinstance(seen, CameraOutage):
                # A process that replaces one that died passes over losses that have ended.
                if started_ns + seen.until_us * 1000 > self._now_ns():
                    outage = seen
                    wait_until(outage.from_us)
                    self._outbox.put(MessageKind.LOST, outage.reason)
                continue
            frame, truth = seen
            if frame.index < from_index or frame.t_us < from_us:
                continue
            if outage is not None:
                wait_until(outage.until_us)
                self._outbox.put(MessageKind.BACK)
                outage = None
            wait_until(frame.t_us)
            self._send(frame, truth, source.damaged)

    def _on_demand(self, source: StreamSource, from_index: int, only: list[int] | None) -> None:
        on_the_way, wanted = 0, None if only is None else set(only)
        last = None if only is None else max(only, default=-1)
        for frame, truth in source.frames():
            if last is not None and frame.index > last:
                return
            if frame.index < from_index or (wanted is not None and frame.index not in wanted):
                continue
            if on_the_way == SLOTS:
                # The parent answers only what has reached it, so that comes before the wait for its answer.
                self._outbox.empty()
                self._requests.get()
                on_the_way -= 1
            self._send(frame, truth, source.damaged)
            on_the_way += 1

    def _live(self, source: LiveSource) -> None:
        """Sends every frame that arrives after the run began, stamped with its arrival time.

        Earlier frames are read and dropped, so that none is stale when the run begins.
        """
        begin: dict[str, Any] | None = None
        lost = False
        index, last_us = 0, -1
        for seen in source.watch_pictures():
            if begin is None:
                with suppress(queue.Empty):
                    # While the camera is lost there are no frames to drop, so this waits for the request.
                    begin = self._requests.get(block=isinstance(seen, Silence))
                if begin is None:
                    continue
                index = begin["from_index"]
            if isinstance(seen, Silence):
                if not lost:
                    self._outbox.put(MessageKind.LOST, seen.reason)
                lost = True
                # Nothing may follow for a long time that would flush the message.
                self._outbox.empty()
                continue
            if lost:
                self._outbox.put(MessageKind.BACK)
            lost = False
            t_us = (seen.arrived_ns - begin["started_monotonic_ns"]) // 1000
            if t_us < 0:
                continue
            # Pictures that arrive together still have rising times.
            last_us = max(t_us, last_us + 1)
            self._send(Frame(index, last_us, seen.image, None), None, 0)
            index += 1

    def _send(self, frame: Frame, truth: Truth | None, damaged: int) -> None:
        height, width = frame.image.shape[:2]
        # First the pixels: the parent reads them as soon as it has the message.
        offset = self._slots.write_frame(frame)
        header = FrameHeader(
            frame.index, frame.t_us, self._now_ns(), damaged, offset, height, width, frame.boxes, truth
        )
        self._outbox.put(MessageKind.FRAME, header)


def main() -> int:
    """Opens the source and sends all its frames; returns the exit code."""
    # One camera must not occupy all cores.
    cv2.setNumThreads(1)
    requests: _Requests = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    opening = requests.get()
    outbox = _Outbox(opening["pipe_fd"])
    code = 0
    try:
        source = _open(opening)
        length_s = source.length_s if isinstance(source, RecordedSource) else None
        outbox.put(MessageKind.OPENED, f"{source.fps}" if length_s is None else f"{source.fps} {length_s}")
        # The next message may be long in coming, and the parent waits for this one.
        outbox.empty()
        damaged = FrameSender(outbox, SlotWriter(opening["memory_fd"]), requests).send_frames(source)
        outbox.put(MessageKind.ENDED, str(damaged))
    except UserError as error:
        outbox.put(MessageKind.REFUSED, mask_passwords(str(error), opening["spec"]))
        code = 2
    except Exception as error:
        outbox.put(MessageKind.FAILED, mask_passwords(f"{type(error).__name__}: {error}", opening["spec"]))
        code = 1
    outbox.empty()
    return code


if __name__ == "__main__":
    # Not sys.exit: the listening thread holds standard input, and a normal exit would wait for it.
    os._exit(main())
