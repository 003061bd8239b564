"""Server-sent events: the status once a second, and each camera's newest answer."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from ekya.core.errors import NotThereError
from ekya.service.http.routes import EVENTS

EVERY_S = 1.0
MOST_LISTENERS = 16
"""Number of event streams at a time."""

LONGEST_S = 3600.0
"""Time after which an event stream ends, seconds. Browsers open a new one, if they are still logged in."""

SLOWEST_S = 30.0
"""Time after which a client that does not read is given up, seconds."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamedMoment:
    """What there is to tell.

    Attributes:
        status: JSON.
        newest: each camera's newest message.
    """

    status: bytes
    newest: Mapping[str, Mapping[str, object]]


@dataclass(slots=True, eq=False)
class _Listener:
    """One event stream. A slow client gets the newest of each kind, so nothing piles up.

    Attributes:
        waiting: events that are to be written, by what they are about.
        told: id of the message that each camera's last event had.
        came: set when something waits.
    """

    waiting: dict[str, bytes] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class Events:
    """Reads the service once a second while there are listeners, and tells all of them.

    Attributes:
        read: reads the service.
    """

    read: Callable[[], Awaitable[StreamedMoment]]
    _listeners: set[_Listener] = field(default_factory=set)
    _reading: asyncio.Task[None] | None = None
    _closed: bool = False

    async def answer_stream(self, request: web.Request) -> web.StreamResponse:
        """Answers with an event stream, until the client goes.

        Raises:
            HTTPServiceUnavailable: there are ``MOST_LISTENERS`` already.
        """
        if len(self._listeners) >= MOST_LISTENERS or self._closed:
            raise web.HTTPServiceUnavailable(
                text=f"{MOST_LISTENERS} event streams are open already; close one of them",
                headers={"Retry-After": "10"},
            )
        listener = _Listener()
        self._listeners.add(listener)
        # Between its last look for listeners and its end the task awaits nothing, so it misses none.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_on())
        try:
            response = web.StreamResponse(headers={"Content-Type": EVENTS, "Cache-Control": "no-store"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                await self._write_on(request, response, listener)
            return response
        finally:
            self._listeners.discard(listener)

    async def close(self) -> None:
        """Ends all event streams."""
        self._closed = True
        for listener in self._listeners:
            listener.came.set()
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _write_on(
        self, request: web.Request, response: web.StreamResponse, listener: _Listener
    ) -> None:
        clock = asyncio.get_running_loop().time
        ends_s = clock() + LONGEST_S
        while clock() < ends_s:
            await listener.came.wait()
            if self._closed:
                return
            listener.came.clear()
            events, listener.waiting = listener.waiting, {}
            try:
                async with asyncio.timeout(SLOWEST_S):
                    await response.write(b"".join(events.values()))
            except TimeoutError:
                # Aborted: an orderly close would wait for the client to read what is buffered.
                if request.transport is not None:
                    request.transport.abort()
                return

    async def _read_on(self) -> None:
        while self._listeners:
            began_s = asyncio.get_running_loop().time()
            try:
                self._tell(await self.read())
            except Exception:
                # The streams stay open: the next moment may be readable again.
                _LOG.exception("the status for event streams could not be read")
            took_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(EVERY_S - took_s, EVERY_S / 10))

    def _tell(self, moment: StreamedMoment) -> None:
        """Gives each listener the status, and the messages that it does not have yet."""
        status = _event("status", moment.status)
        answers = {name: _event("answer", json.dumps(one).encode()) for name, one in moment.newest.items()}
        ids = {name: one.get("id") for name, one in moment.newest.items()}
        for listener in self._listeners:
            listener.waiting["status"] = status
            for name, event in answers.items():
                if listener.told.get(name) != ids[name]:
                    listener.waiting[f"answer {name}"] = event
            listener.told = ids
            listener.came.set()


def newest_of(
    cameras: Sequence[str], newest: Callable[[str], Mapping[str, object] | None]
) -> dict[str, Mapping[str, object]]:
    """Returns the newest message of each camera that has one; a camera may be removed meanwhile."""
    found = {}
    for camera in cameras:
        with contextlib.suppress(NotThereError):
            if (message := newest(camera)) is not None:
                found[camera] = message
    return found


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
