"""Handles of objects at other sites, called over HTTP."""

import asyncio
import atexit
import errno
import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import quote

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientSession,
    ClientTimeout,
    InvalidURL,
    TCPConnector,
)

from ekya import __version__
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.speed import SpeedCurve
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.host_facts import Link, SiteHostFacts
from ekya.fleet.run.lending import Answer, Lent
from ekya.fleet.run.live.orders import Neighbour, RunOrder, RunState
from ekya.fleet.run.sites.codec import BIG_BYTES, Codec

COORDINATION: tuple[type, ...] = (
    Answer,
    SiteHostFacts,
    Interrupted,
    Lent,
    Link,
    Loan,
    Neighbour,
    TrainingOffer,
    RetrainConfig,
    Room,
    RunOrder,
    RunState,
    SpeedCurve,
)
"""Between the driver, the coordinator or a doctor, and sites."""


def training_types() -> tuple[type, ...]:
    """Returns those between the processes of a training; they need torch, which a coordinator does not."""
    from ekya.core.areas import Areas
    from ekya.fleet.run.training.protocol import EpochOutcome, TrainingBundle
    from ekya.models.training.exemplars import ExemplarMemory
    from ekya.models.training.frames import FrameObjects, LabelledFrames
    from ekya.models.training.labelled import LabelledCrops
    from ekya.models.training.trainer import EpochResult, RetrainingData

    return (
        Areas,
        EpochOutcome,
        EpochResult,
        ExemplarMemory,
        FrameObjects,
        LabelledCrops,
        LabelledFrames,
        RetrainingData,
        TrainingBundle,
    )


VERSION_HEADER = "Ekya-Version"
"""Header of every request and answer, since sites of two versions may understand different things."""

CONNECTS_WITHIN_S = 5.0
"""Time limit of making a connection, and at a process's end of ending objects elsewhere."""

VANISHED_S = 30
"""Time after which a peer that has vanished is given up, also in the middle of a call."""

_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000),
)

_NO_ROUTE = "cannot be reached: there is no route to it; correct the address, or the network"
_BROKEN = "has broken the connection; if the site has ended, its log says why"

_OS_ERRORS = {
    errno.ECONNREFUSED: "refuses connections: start `ekya fleet site` there, or correct the address",
    errno.EHOSTUNREACH: _NO_ROUTE,
    errno.ENETUNREACH: _NO_ROUTE,
    errno.ETIMEDOUT: f"has vanished: nothing came from it for {VANISHED_S} s; check it and the network",
}

_REFUSALS = {
    401: "refuses the token; all sites need the same, in EKYA_FLEET_TOKEN or the token file",
    404: "has no object {name} with this method; it has ended, or its site was started again",
    409: "has Ekya {version}, and this is " + __version__ + "; install the same at all sites",
}


@dataclass(frozen=True, slots=True)
class SiteHandle:
    """Handle of an object of another site. It may be sent to other processes and sites.

    Calls do not wait for each other and may overtake each other: a caller waits for the first where the order
    matters. Callbacks of their futures must not wait for calls, which end in the same thread.

    Attributes:
        address: ``host:port`` of the site.
        name: of the object there.
        token: of the fleet. It is not sent: a site has its own.
    """

    address: str
    name: str
    token: str = field(repr=False, compare=False)

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method of the object; arguments are as they are now, as ``Codec`` says."""
        link = _link(os.getpid(), self.token)
        try:
            # Not in the loop: the caller may change an array as soon as this returns.
            body = link.codec.pack_value(arguments)
        except ValueError as error:
            refused: Future[Any] = Future()
            refused.set_exception(CallError(f"{method} of {self.name} at {self.address}: {error}"))
            return refused
        return asyncio.run_coroutine_threadsafe(link.call(self, method, body), link.loop)

    def end_process(self) -> None:
        """Ends the object's process, if it can still be reached; does not wait."""
        link = _link(os.getpid(), self.token)
        link.loop.call_soon_threadsafe(link.begin_to_end, self)


@cache
def wire_codec(token: str) -> Codec:
    """Returns the codec of all that crosses sites of the fleet with this token."""
    return Codec((*COORDINATION, SiteHandle), training_types, {SiteHandle: {"token": token}})


class _Link:
    """Connections of this process to the sites of a fleet, in the thread of an event loop.

    Args:
        token: of the fleet.
    """

    def __init__(self, token: str) -> None:
        self.codec, self.loop = wire_codec(token), asyncio.new_event_loop()
        self._headers = {"Authorization": f"Bearer {token}", VERSION_HEADER: __version__}
        self._session: ClientSession | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._process = os.getpid()
        threading.Thread(target=self.loop.run_forever, name="sites", daemon=True).start()
        atexit.register(self._close)

    async def call(self, handle: SiteHandle, method: str, body: bytes) -> Any:
        """Returns the result of a method; raises what ``Handle.call`` says."""
        packed = await self._post(handle, f"call/{quote(handle.name, safe='')}/{quote(method)}", body)
        try:
            if len(packed) > BIG_BYTES:
                how, value = await asyncio.to_thread(self.codec.unpack_value, packed)
            else:
                how, value = self.codec.unpack_value(packed)
        except (TypeError, ValueError) as error:
            raise CallError(f"{handle.address}: {error}") from error
        if how == "user":
            raise UserError(value)
        if how != "ok":
            raise CallError(f"{method} of {handle.name} at {handle.address}: {value}")
        return value

    def begin_to_end(self, handle: SiteHandle) -> None:
        """Begins to end an object's process."""
        task = self.loop.create_task(self._end(handle))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, handle: SiteHandle) -> None:
        with suppress(CallError):
            await self._post(handle, f"end/{quote(handle.name, safe='')}", b"")

    async def _post(self, handle: SiteHandle, path: str, body: bytes) -> bytes:
        try:
            url = f"http://{handle.address}/{path}"
            posted = self._opened().post(
                url, data=BytesIO(body), headers=self._headers, allow_redirects=False
            )
            async with posted as response:
                answer = await response.read()
        except (ClientError, OSError, ValueError) as error:
            raise CallError(f"{handle.address} {_in_words(error)}") from error
        if response.status != 200:
            words = _REFUSALS.get(response.status, "answers {status}: {text}").format(
                name=handle.name,
                version=response.headers.get(VERSION_HEADER, "of unknown version"),
                status=response.status,
                text=" ".join(answer[:200].decode(errors="replace").split()),
            )
            raise CallError(f"{handle.address} {words}")
        return answer

    def _opened(self) -> ClientSession:
        """Returns the session, which only the thread of the loop can make."""
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(limit=0, socket_factory=_watched_socket),
                timeout=ClientTimeout(total=None, connect=CONNECTS_WITHIN_S),
            )
        return self._session

    def _close(self) -> None:
        """Waits for objects that are being ended, and closes the connections, at the end of the process."""
        if os.getpid() == self._process:  # The thread does not exist in a fork.
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._closed(), self.loop).result(2 * CONNECTS_WITHIN_S)

    async def _closed(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=CONNECTS_WITHIN_S)
        if self._session is not None:
            await self._session.close()


@cache
def _link(process: int, token: str) -> _Link:
    """Returns this process's link; a fork makes its own."""
    return _Link(token)


def _watched_socket(address: Any) -> socket.socket:
    """Returns a socket for an address as of ``getaddrinfo``, whose peer must not vanish unnoticed."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    for option in _SOCKET_OPTIONS:
        made.setsockopt(*option)
    return made


def _in_words(error: Exception) -> str:
    """Returns what is wrong with a site, and what to do."""
    if isinstance(error, ClientConnectorDNSError):
        return "is no known host; correct the address"
    if isinstance(error, InvalidURL) or not isinstance(error, OSError | ClientError):
        return "is no address; it must be host:port"
    number = error.errno if isinstance(error, OSError) else None
    if number in _OS_ERRORS:
        return _OS_ERRORS[number]
    if isinstance(error, TimeoutError):
        return f"does not answer within {CONNECTS_WITHIN_S:g} s; check that it runs, and firewalls on the way"
    return _BROKEN
