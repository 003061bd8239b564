"""Server of a site's objects, which other sites call over HTTP. It runs in a thread of the site's process."""

import asyncio
import hmac
import logging
import socket
import threading
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from ekya import __version__
from ekya.core.errors import UserError
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.sites.client import VERSION_HEADER, SiteHandle, wire_codec
from ekya.fleet.run.sites.codec import BIG_BYTES, MOST_BYTES

WRONG_TOKEN_S = 0.5
"""Time after which a wrong token is refused, so that guessing is slow, seconds."""

STOP_S = 1.0
"""Time that calls get to end when the server is closed, and again once they are cancelled, seconds."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Offered:
    """An object, and the names of the methods that may be called."""

    handle: Handle
    methods: frozenset[str]


class SiteServer:
    """Serves calls from its construction until ``close``.

    Args:
        address: of this machine, to listen on.
        port: 0 takes a free one.
        token: that callers must show.
        known_as: host by which others reach it; the default is ``address``.

    Attributes:
        address: ``host:port`` for others.

    Raises:
        UserError: the port is in use, or the address is not this machine's.
    """

    def __init__(self, address: str, port: int, token: str, known_as: str | None = None) -> None:
        self._token, self._codec = token, wire_codec(token)
        self._offered: dict[str, _Offered] = {}
        listening = _listen(address, port)
        host = known_as or address
        host = f"[{host}]" if ":" in host else host
        self.address = f"{host}:{listening.getsockname()[1]}"
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="site", daemon=True)
        self._thread.start()

    def offer(self, name: str, handle: Handle, methods: Collection[str]) -> SiteHandle:
        """Lets others call these methods of an object, and end it; returns it as others reach it."""
        self._offered[name] = _Offered(handle, frozenset(methods))
        return SiteHandle(self.address, name, self._token)

    def withdraw(self, name: str) -> None:
        """Takes further calls of an object no more; nothing where there is none of this name."""
        self._offered.pop(name, None)

    def close(self) -> None:
        """Ends all calls. May be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5 * STOP_S)

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listening))

    async def _serve(self, listening: socket.socket) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        app.router.add_post("/call/{name}/{method}", self._call)
        app.router.add_post("/end/{name}", self._end)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(shown, f"Bearer {self._token}".encode()):
            _LOG.warning("a call from %s with a wrong token", request.remote)
            await asyncio.sleep(WRONG_TOKEN_S)
            raise web.HTTPUnauthorized
        if request.headers.get(VERSION_HEADER) != __version__:
            return web.Response(status=409, headers={VERSION_HEADER: __version__})
        return await handler(request)

    async def _call(self, request: web.Request) -> web.Response:
        """Calls a method. It goes on if its caller goes away."""
        offered, method = self._offered.get(request.match_info["name"]), request.match_info["method"]
        if offered is None or method not in offered.methods:
            raise web.HTTPNotFound
        body = await request.read()
        try:
            if len(body) > BIG_BYTES:
                arguments = await asyncio.to_thread(self._codec.unpack, body)
            else:
                arguments = self._codec.unpack(body)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        answer = await self._answer(offered.handle, method, arguments)
        # Its size is not known before. A thread costs a tenth of a millisecond.
        return web.Response(body=await asyncio.to_thread(self._packed, answer))

    async def _answer(self, handle: Handle, method: str, arguments: Any) -> tuple[str, Any]:
        """Returns a result as ``ok``, an error of the user as ``user``, and others as ``failed``."""
        try:
            told: Future[Any] = handle.call(method, *arguments)
            return "ok", await asyncio.wrap_future(told)
        except UserError as error:
            return "user", str(error)
        except CallError as error:
            return "failed", str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # The server is being closed; otherwise the object has ended.
            return "failed", "the call was cancelled, since its object has ended"
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"

    def _packed(self, answer: tuple[str, Any]) -> bytes:
        try:
            return self._codec.pack(answer)
        except ValueError as error:
            return self._codec.pack(("failed", str(error)))

    async def _end(self, request: web.Request) -> web.Response:
        offered = self._offered.pop(request.match_info["name"], None)
        if offered is None:
            raise web.HTTPNotFound
        await asyncio.to_thread(offered.handle.end)
        return web.Response()


def _listen(address: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"{address}:{port} cannot be listened on ({error.strerror}); choose another address or port"
        ) from error
