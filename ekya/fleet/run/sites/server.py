"""Server of a site's objects, which other sites call over HTTP. It runs in a thread of the site's process."""

import asyncio
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
from ekya.fleet.run.sites.token import require_token
from ekya.system.http_thread import HttpThread


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
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        app.router.add_post("/call/{name}/{method}", self._call)
        app.router.add_post("/end/{name}", self._end)
        self._http = HttpThread(app, address, port, "site")
        host = known_as or address
        host = f"[{host}]" if ":" in host else host
        self.address = f"{host}:{self._http.port}"

    def offer(self, name: str, handle: Handle, methods: Collection[str]) -> SiteHandle:
        """Lets others call these methods of an object, and end it; returns it as others reach it."""
        self._offered[name] = _Offered(handle, frozenset(methods))
        return SiteHandle(self.address, name, self._token)

    def withdraw(self, name: str) -> None:
        """Takes further calls of an object no more; nothing where there is none of this name."""
        self._offered.pop(name, None)

    def close(self) -> None:
        """Ends all calls. May be called twice."""
        self._http.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await require_token(request, self._token)
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
        await asyncio.to_thread(offered.handle.end_process)
        return web.Response()
