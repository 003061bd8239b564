"""Process in which a source runs: reads frames and hands them over, paced, live or on demand.

Started by ``ekya.streams.ingest.process`` as ``python -m ekya.streams.ingest.process_child``, which imports
neither ray nor torch. Standard input carries one JSON object a line: the source to open and the file
descriptors to write to;
then how to begin; then, on demand, one line for each frame taken. End of input means that the parent is gone.
"""

import importlib
import json
import logging
import os
import queue
import select
import sys
import threading
import time
from collections import deque
from typing import Any

import cv2

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import masked
from ekya.streams.ingest.frame import (
    Frame,
    InterruptedSource,
    LiveSource,
    Outage,
    Silence,
    StreamSource,
    Truth,
)
from ekya.streams.ingest.handover import SLOTS, FrameHeader, MessageKind, SlotWriter, pack
from ekya.streams.ingest.process import SourceSpec

_Orders = queue.SimpleQueue[dict[str, Any]]


class _Notes(logging.Handler):
    """Collects a source's warnings, from all threads, for the log of the parent: this process has no log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class _Outbox:
    """Queue of messages to the pipe; keeps what does not fit yet, so that writing never blocks."""

    def __init__(self, pipe_fd: int, notes: "_Notes") -> None:
        self._fd = pipe_fd
        self._notes = notes
        self._waiting: deque[bytes] = deque()
        os.set_blocking(pipe_fd, False)

    def put(self, message: bytes) -> None:
        """Sends a message, after the warnings logged since the last one."""
        while self._notes.texts:
            self._waiting.append(pack(MessageKind.NOTED, self._notes.texts.popleft()))
        self._waiting.append(message)
        self._flush()

    def wait_until(self, due_ns: int) -> None:
        """Sleeps until a monotonic time, and sends waiting messages meanwhile."""
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if self._waiting:
                select.select([], [self._fd], [], left_ns / 1e9)
                self._flush()
            else:
                time.sleep(left_ns / 1e9)

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
            if sent < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][sent:]
            else:
                self._waiting.popleft()


def _listen(orders: _Orders) -> None:
    """Queues the parent's orders. Ends this process immediately when the parent is gone."""
    for line in sys.stdin.buffer:
        orders.put(json.loads(line))
    os._exit(0)


def _open(order: dict[str, Any]) -> StreamSource | LiveSource:
    spec_type = getattr(importlib.import_module(order["module"]), order["type"])
    spec: SourceSpec = spec_type.model_validate_json(order["spec"])
    return spec.open(tuple(order["classes"]))


class _Sender:
    """Sends the frames of a source: paced, on demand or live."""

    def __init__(self, outbox: _Outbox, slots: SlotWriter, orders: _Orders) -> None:
        self._outbox = outbox
        self._slots = slots
        self._orders = orders

    def paced(self, source: StreamSource, started_ns: int, from_index: int) -> None:
        def due_ns(t_us: int) -> int:
            return started_ns + t_us * 1000

        outage: Outage | None = None
        for seen in source.shown() if isinstance(source, InterruptedSource) else source.frames():
            if isinstance(seen, Outage):
                if due_ns(seen.until_us) > time.monotonic_ns():
                    outage = seen
                    self._outbox.wait_until(due_ns(outage.from_us))
                    self._outbox.put(pack(MessageKind.LOST, outage.reason))
                continue
            frame, truth = seen
            if frame.index < from_index:
                continue
            if outage is not None:
                self._outbox.wait_until(due_ns(outage.until_us))
                self._outbox.put(pack(MessageKind.BACK, ""))
                outage = None
            self._outbox.wait_until(due_ns(frame.t_us))
            self._send(frame, truth, source.damaged)

    def on_demand(self, source: StreamSource, from_index: int) -> None:
        on_the_way = 0
        for frame, truth in source.frames():
            if frame.index < from_index:
                continue
            if on_the_way == SLOTS:
                self._outbox.empty()
                self._orders.get()
                on_the_way -= 1
            self._send(frame, truth, source.damaged)
            on_the_way += 1

    def live(self, source: LiveSource) -> None:
        """Sends every frame that arrives after the run began, stamped with its arrival time.

        Earlier frames are read and dropped, so that none is stale when the run begins.
        """
        begun: dict[str, Any] | None = None
        lost = False
        index = last_us = 0
        for seen in source.watch():
            if begun is None:
                begun = self._begun(wait=isinstance(seen, Silence))
                if begun is None:
                    continue
                index, last_us = begun["from_index"], -1
            if isinstance(seen, Silence):
                if not lost:
                    self._outbox.put(pack(MessageKind.LOST, seen.reason))
                lost = True
                self._outbox.empty()
                continue
            if lost:
                self._outbox.put(pack(MessageKind.BACK, ""))
            lost = False
            t_us = (seen.arrived_ns - begun["started_monotonic_ns"]) // 1000
            if t_us < 0:
                continue
            last_us = max(t_us, last_us + 1)
            self._send(Frame(index, last_us, seen.image, None), None, 0)
            index += 1

    def _begun(self, wait: bool) -> dict[str, Any] | None:
        try:
            return self._orders.get(wait)
        except queue.Empty:
            return None

    def _send(self, frame: Frame, truth: Truth | None, damaged: int) -> None:
        height, width = frame.image.shape[:2]
        offset = self._slots.write(frame)
        now_ns = time.monotonic_ns()
        header = FrameHeader(
            frame.index, frame.t_us, now_ns, damaged, offset, height, width, frame.boxes, truth
        )
        self._outbox.put(pack(MessageKind.FRAME, header))


def _run(sender: _Sender, source: StreamSource | LiveSource, orders: _Orders) -> int:
    """Sends all frames; returns the number of damaged ones."""
    if isinstance(source, LiveSource):
        sender.live(source)
        return 0
    order = orders.get()
    if order["started_monotonic_ns"] is None:
        sender.on_demand(source, order["from_index"])
    else:
        sender.paced(source, order["started_monotonic_ns"], order["from_index"])
    return source.damaged


def main() -> int:
    """Opens the source and sends all its frames; returns the exit code."""
    cv2.setNumThreads(1)
    orders: _Orders = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    opening = orders.get()
    notes = _Notes()
    logging.getLogger("ekya").addHandler(notes)
    outbox = _Outbox(opening["pipe_fd"], notes)
    code = 0
    try:
        source = _open(opening)
        outbox.put(pack(MessageKind.OPENED, str(source.fps)))
        outbox.empty()
        damaged = _run(_Sender(outbox, SlotWriter(opening["memory_fd"]), orders), source, orders)
        outbox.put(pack(MessageKind.ENDED, str(damaged)))
    except UserError as error:
        outbox.put(pack(MessageKind.REFUSED, masked(str(error), opening["spec"])))
        code = 2
    except Exception as error:
        words = masked(f"{type(error).__name__}: {error}", opening["spec"])
        outbox.put(pack(MessageKind.FAILED, words))
        code = 1
    outbox.empty()
    return code


if __name__ == "__main__":
    # Not sys.exit: the listening thread holds standard input, and a normal exit would wait for it.
    os._exit(main())
