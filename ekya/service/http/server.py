"""The HTTP server, in a thread of the service's process."""

import logging
import threading
from contextlib import suppress
from pathlib import Path
from ssl import Purpose, SSLContext, create_default_context

from aiohttp import web

from ekya.config.fleet_sections import HttpConfig
from ekya.core.errors import UserError
from ekya.service.http.access import TOKEN_FILE, Keys
from ekya.service.http.backend import Backend
from ekya.service.http.endpoints import MOST_BYTES, Endpoints, errors_as_json
from ekya.service.http.guard import Guard, is_loopback
from ekya.service.http.page import Page, set_headers
from ekya.service.http.place import Place
from ekya.system.http_thread import HttpThread

DEFAULT = HttpConfig()
"""This machine alone."""

STOP_S = 5.0
"""Time that requests get to end when the server is closed, seconds."""

MOST_CONNECTIONS = 256
"""Number of connections at a time; a further one is closed at once."""

IDLE_S = 30.0
"""Time after which a connection without a whole request is closed, seconds."""

AGAIN_S = 2.0
"""Time between attempts to listen on a port that is taken, seconds."""

_LOG = logging.getLogger(__name__)


def build_application(
    backend: Backend, name: str, token: str | None, metrics_open: bool = False
) -> web.Application:
    """Builds API and page.

    Args:
        backend: the service behind them.
        name: of the service, for the page.
        token: that clients must show; None admits everyone who reaches it under a name of this machine.
        metrics_open: whether everyone may read ``/metrics``.
    """
    guard = Guard(None if token is None else Keys(token), metrics_open)
    app = web.Application(middlewares=[errors_as_json], client_max_size=MOST_BYTES)
    Endpoints(backend, guard).add_to(app)
    Page(backend, name, guard).add_to(app)
    app.on_response_prepare.append(set_headers)
    return app


class HttpServer:
    """Serves API and page of a service, from ``start`` to ``close``.

    Args:
        backend: the service.
        folder: its folder, which gets ``service.json``.
        token: that clients must show, see ``access.token_of``; None admits everyone on this machine.
        config: where to listen.

    Raises:
        UserError: an address that others can reach without a token, or a certificate that is of no use.
    """

    def __init__(
        self, backend: Backend, folder: Path, token: str | None, config: HttpConfig = DEFAULT
    ) -> None:
        if token is None and not is_loopback(config.address):
            raise UserError(
                f"--no-token: everyone who reaches {config.address} could change the fleet; use http.address "
                f"{DEFAULT.address}, or the token"
            )
        self._backend, self._folder, self._token, self._config = backend, folder, token, config
        self._tls = None if config.certificate is None else _load_certificate(config.certificate, config.key)
        self._place: Place | None = None
        self._thread: HttpThread | None = None
        self._waiting: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """URL of the page, once started."""
        if self._place is None:
            raise ValueError("the server was not started")
        return self._place.url

    def start(self, patient: bool = False) -> None:
        """Listens, writes ``service.json``, and returns; requests are answered from now on.

        Args:
            patient: whether to return also where the port is in use, and to try again until it is free.

        Raises:
            UserError: the port is in use, or the address is not this machine's.
        """
        try:
            self._begin()
        except UserError as error:
            if not patient:
                raise
            _LOG.warning("%s; there is no page until it is free, and all else goes on", error)
            self._waiting = threading.Thread(target=self._begin_later, name="http-waiting", daemon=True)
            self._waiting.start()

    def _begin_later(self) -> None:
        while not self._closed.wait(AGAIN_S):
            with suppress(UserError):
                self._begin()
                return

    def _begin(self) -> None:
        config = self._config
        # Before the file is written: who reads it finds the port open, and port 0 has a number by then.
        thread = HttpThread(
            build_application(self._backend, self._folder.name, self._token, config.metrics_open),
            config.address,
            config.port,
            "http",
            stop_s=STOP_S,
            idle_s=IDLE_S,
            most_connections=MOST_CONNECTIONS,
            remedy="choose another http.port",
            tls=self._tls,
        )
        self._place = Place.of_this_process(config.address, thread.port, config.certificate)
        try:
            self._place.write_into(self._folder)
        except UserError:
            thread.close()
            raise
        self._thread = thread
        how = "" if self._token is None else f"; log in with the token in {self._folder / TOKEN_FILE}"
        _LOG.info("serves at %s%s", self.url, how)
        if self._tls is None and not is_loopback(config.address):
            _LOG.warning("%s is reached by others without encryption; see http.certificate", self.url)

    def close(self) -> None:
        """Ends all requests and removes ``service.json``. May be called twice."""
        self._closed.set()
        # An attempt that is under way may still set the thread that is closed below.
        if self._waiting is not None:
            self._waiting.join()
        if self._thread is None or self._place is None:
            return
        # First, so that no client finds the service while it ends.
        self._place.remove_from(self._folder)
        self._thread.close()
        self._thread = None


def _load_certificate(certificate: Path, key: Path | None) -> SSLContext:
    tls = create_default_context(Purpose.CLIENT_AUTH)
    try:
        # An empty passphrase, so that OpenSSL does not wait at the terminal for one.
        tls.load_cert_chain(certificate, key, password="")
    except OSError as error:
        files = certificate if key is None else f"{certificate}, {key}"
        raise UserError(
            f"http.certificate, http.key: {files}: {error}; both must be PEM and belong together, the key "
            "without a passphrase"
        ) from error
    return tls
