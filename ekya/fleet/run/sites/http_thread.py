"""An HTTP server in a thread of its process."""

import asyncio
import hmac
import logging
import socket
import threading

from aiohttp import web

from ekya.core.errors import UserError

WRONG_TOKEN_S = 0.5
"""Time after which a wrong token is refused, so that guessing is slow, seconds."""

STOP_S = 1.0
"""Time that requests get to end when the server is closed, and again once they are cancelled, seconds."""

_LOG = logging.getLogger(__name__)


class HttpThread:
    """Serves an application from its construction until ``close``.

    Args:
        app: to serve.
        address: of this machine, to listen on.
        port: 0 takes a free one.
        name: of the thread.

    Attributes:
        port: on which it listens.

    Raises:
        UserError: the port is in use, or the address is not this machine's.
    """

    def __init__(self, app: web.Application, address: str, port: int, name: str) -> None:
        self._app = app
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        listening = _listen(address, port)
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(listening,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all requests. May be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5 * STOP_S)

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listening))

    async def _serve(self, listening: socket.socket) -> None:
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=STOP_S)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        await self._stop.wait()
        await runner.cleanup()


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


def _listen(address: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"{address}:{port} cannot be listened on ({error.strerror}); choose another address or port"
        ) from error
