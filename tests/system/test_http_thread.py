"""An HTTP server in a thread: it answers from its construction until it is closed."""

import socket
import threading
from contextlib import closing
from http.client import HTTPConnection

import pytest
from aiohttp import web

from ekya.core.errors import UserError
from ekya.system.http_thread import HttpThread

HERE = "127.0.0.1"


def application(start=None):
    async def answer(_request):
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", answer)
    if start is not None:
        app.on_startup.append(start)
    return app


def asked(port):
    with closing(HTTPConnection(HERE, port)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().read()


def test_it_answers_until_it_is_closed():
    server = HttpThread(application(), HERE, 0, "some-http")
    assert asked(server.port) == b"here"
    server.close()
    server.close()
    with pytest.raises(ConnectionError):
        asked(server.port)
    assert "some-http" not in {thread.name for thread in threading.enumerate()}


def test_a_port_that_is_taken_is_an_error_of_the_user():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"^{HERE}:{port} cannot be listened on .*; choose another one$"):
            HttpThread(application(), HERE, port, "http", remedy="choose another one")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6; nothing to test")
def test_every_address_is_one_of_ipv4_too():
    with closing(HttpThread(application(), "::", 0, "http")) as server:
        assert asked(server.port) == b"here"


def test_an_application_that_does_not_start_is_told(caplog):
    async def fail(_app):
        raise OSError("no such camera")

    with pytest.raises(RuntimeError, match="its log says why"):
        HttpThread(application(fail), HERE, 0, "http")
    assert "no such camera" in caplog.text


def test_connections_are_limited():
    with (
        closing(HttpThread(application(), HERE, 0, "http", most_connections=1)) as server,
        closing(HTTPConnection(HERE, server.port)) as held,
    ):
        held.request("GET", "/")
        assert held.getresponse().read() == b"here"
        with socket.create_connection((HERE, server.port)) as refused:
            assert refused.recv(100) == b""
