"""An HTTP server in a thread of its process."""

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from ssl import SSLContext

from aiohttp import web

from ekya.core.errors import UserError

_LOG = logging.getLogger(__name__)


class HttpThread:
    """Serves an application from its construction until ``close``.

    Args:
        app: to serve.
        address: of this machine, to listen on; all of them, those of IPv4 as well, if it is ``::``.
        port: 0 takes a free one.
        name: of the thread.
        stop_s: time that requests get to end on ``close``, and again once they are cancelled, seconds.
        idle_s: time after which a connection without a whole request is closed, seconds; the default is
            longer than clients keep theirs, so none asks on one that is being closed.
        most_connections: at a time, a further one is closed at once; None for any number.
        remedy: what a user can do if the address cannot be listened on.
        tls: certificate and key for https; None for http.

    Attributes:
        port: on which it listens.

    Raises:
        UserError: the port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        app: web.Application,
        address: str,
        port: int,
        name: str,
        stop_s: float = 1.0,
        idle_s: float = 3600.0,
        most_connections: int | None = None,
        remedy: str = "choose another address or port",
        tls: SSLContext | None = None,
    ) -> None:
        self._app, self._stop_s, self._idle_s = app, stop_s, idle_s
        self._most_connections, self._tls = most_connections, tls
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._began, self._serves = threading.Event(), False
        # Here and not in the thread, so that the caller gets the error of a port that is in use.
        listening = _listen(address, port, remedy)
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(listening,), name=name, daemon=True)
        self._thread.start()
        self._began.wait()
        if not self._serves:
            raise RuntimeError("the HTTP server did not start; its log says why")

    def close(self) -> None:
        """Ends all requests. May be called twice."""
        if self._thread.is_alive():
            # A server that fails at this moment has closed its loop.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(2 * self._stop_s + 5)

    def _run(self, listening: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(listening))
        except Exception:
            _LOG.exception("the HTTP server failed")
        finally:
            # Also of a server that has failed: its constructor waits for this.
            self._began.set()

    async def _serve(self, listening: socket.socket) -> None:
        runner = web.AppRunner(
            self._app, access_log=None, shutdown_timeout=self._stop_s, keepalive_timeout=self._idle_s
        )
        await runner.setup()
        listener = await self._loop.create_server(
            lambda: self._protocol(runner), sock=listening, ssl=self._tls
        )
        try:
            self._serves = True
            self._began.set()
            await self._stop.wait()
        finally:
            # First: no connection may come in while the others are ended.
            listener.close()
            await runner.cleanup()

    def _protocol(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """Returns what handles a new connection."""
        server, most = runner.server, self._most_connections
        if server is None or (most is not None and len(server.connections) >= most):
            return _Refusal()
        return server()


class _Refusal(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _listen(address: str, port: int, remedy: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(f"{address}:{port} cannot be listened on ({error.strerror}); {remedy}") from error
