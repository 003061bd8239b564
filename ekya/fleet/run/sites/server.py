"""Server of a site's objects, which other sites call over HTTP. It runs in a thread of the site's process."""

import asyncio
import hmac
import logging
import os
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from ekya import __version__
from ekya.core.errors import UserError
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.sites.client import VERSION_HEADER, SiteHandle, wire_codec
from ekya.fleet.run.sites.codec import BIG_BYTES, MOST_BYTES
from ekya.system.files import expand_home, user_errors
from ekya.system.http_thread import HttpThread
from ekya.system.token_file import make_token_file, read_token_file, require_token_text

TOKEN_VARIABLE = "EKYA_FLEET_TOKEN"

TOKEN_FILE = Path("~/.config/ekya/fleet_token")

WRONG_TOKEN_S = 0.5
"""Time after which a wrong token is refused, so that guessing is slow, seconds."""

_LOG = logging.getLogger(__name__)


def fleet_token(path: Path | None = None) -> str:
    """Returns the token in ``EKYA_FLEET_TOKEN``, or else that of a file, which is made where it is missing.

    Args:
        path: of the file; the default is ``TOKEN_FILE``.

    Raises:
        UserError: others can read the file, or it or the variable holds no token; full disk and the like.
    """
    told = os.environ.get(TOKEN_VARIABLE)
    if told:
        return require_token_text(
            told, TOKEN_VARIABLE, "copy the token file of another site into it, or unset it"
        )
    path = expand_home(path or TOKEN_FILE)
    if not path.exists():
        with user_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_token_file(path)
    return read_token_file(path, "remove the file for a new one, or copy that of another site", private=True)


async def require_token(request: web.Request, token: str) -> None:
    """Returns if the request shows the token as bearer.

    Raises:
        HTTPUnauthorized: it does not.
    """
    shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    if not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        _LOG.warning("a call from %s with a wrong token", request.remote)
        await asyncio.sleep(WRONG_TOKEN_S)
        raise web.HTTPUnauthorized


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

    def offer_object(self, name: str, handle: Handle, methods: Collection[str]) -> SiteHandle:
        """Lets others call these methods of an object, and end it; returns it as others reach it."""
        self._offered[name] = _Offered(handle, frozenset(methods))
        return SiteHandle(self.address, name, self._token)

    def withdraw_object(self, name: str) -> None:
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
                arguments = await asyncio.to_thread(self._codec.unpack_value, body)
            else:
                arguments = self._codec.unpack_value(body)
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
            return self._codec.pack_value(answer)
        except ValueError as error:
            return self._codec.pack_value(("failed", str(error)))

    async def _end(self, request: web.Request) -> web.Response:
        offered = self._offered.pop(request.match_info["name"], None)
        if offered is None:
            raise web.HTTPNotFound
        await asyncio.to_thread(offered.handle.end_process)
        return web.Response()
