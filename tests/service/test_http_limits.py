"""Clients and services that are slow: what waits is limited, and places become free again."""

import threading
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPConnection, RemoteDisconnected
from socket import create_connection
from urllib.parse import urlsplit

import pytest
from fake_service import NOW_UNIX_S, FakeService
from http_asking import BEARER, serving
from waiting import HANG_GUARD_S, wait_until

from ekya.service.http import endpoints, events, page, server
from ekya.service.http.events import MOST_LISTENERS, Events, StreamedMoment, _Listener
from ekya.service.status import WarningRow


class SlowService(FakeService):
    """Tells its status when it is let, or tells very much."""

    told = ""

    def __init__(self):
        super().__init__()
        self.let = threading.Event()
        self.let.set()

    def status(self):
        self.let.wait()
        row = WarningRow(NOW_UNIX_S, "test", self.told)
        return replace(super().status(), warnings=(row,))


@pytest.fixture
def service():
    return SlowService()


@pytest.fixture
def ask(service, tmp_path):
    with serving(service, tmp_path) as asking:
        yield asking


def connected(ask):
    place = urlsplit(ask.url)
    return create_connection((place.hostname, place.port), timeout=HANG_GUARD_S)


def opened(ask, method, path, headers=BEARER):
    connection = HTTPConnection(urlsplit(ask.url).netloc, timeout=HANG_GUARD_S)
    connection.putrequest(method, path)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def test_service_that_tells_its_status_late_is_unhealthy(ask, service, monkeypatch):
    monkeypatch.setattr(endpoints, "HEALTH_S", HANG_GUARD_S)
    assert ask.get("/healthz", {}).status == 200
    service.let.clear()
    monkeypatch.setattr(endpoints, "HEALTH_S", 0.1)
    assert ask.get("/healthz", {}).status == 503
    service.let.set()
    monkeypatch.setattr(endpoints, "HEALTH_S", HANG_GUARD_S)
    assert ask.get("/healthz", {}).status == 200


@pytest.mark.parametrize(
    ("module", "path", "media", "begun"),
    [
        (endpoints, "/api/v1/cameras", "application/json", b'{"id"'),
        (page, "/login", "application/x-www-form-urlencoded", b"token="),
    ],
    ids=["change", "log in"],
)
def test_body_that_does_not_come_is_given_up(ask, service, monkeypatch, module, path, media, begun):
    monkeypatch.setattr(module, "BODY_S", 0.1)
    headers = {**BEARER, "Content-Type": media, "Content-Length": "20"}
    connection = opened(ask, "POST", path, headers)
    connection.sock.sendall(begun)
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 408 ")
    connection.close()
    assert service.asked == []


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nHost: a"])
def test_connection_without_a_whole_request_is_closed(tmp_path, monkeypatch, head):
    monkeypatch.setattr(server, "IDLE_S", 0.1)
    with serving(SlowService(), tmp_path) as ask, connected(ask) as idle:
        idle.sendall(head)
        assert idle.recv(100) == b""


@pytest.fixture
def three_connections(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(server, "IDLE_S", HANG_GUARD_S)


def test_connections_are_limited_and_become_free_again(three_connections, ask):
    held = [connected(ask) for _ in range(3)]
    for connection in held:  # each is accepted when it has been answered
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    with connected(ask) as refused:
        assert refused.recv(100) == b""
    for connection in held:
        connection.close()

    def answers():
        with suppress(RemoteDisconnected, ConnectionError):
            return ask.get("/healthz", {}).status == 200

    wait_until(answers)


def test_event_stream_ends_after_its_time(ask, monkeypatch):
    monkeypatch.setattr(events, "LONGEST_S", 0.1)
    connection = opened(ask, "GET", "/api/v1/events")
    answer = connection.response_class(connection.sock, method="GET")
    answer.begin()
    assert answer.read().count(b"event: status") <= 2
    connection.close()


def test_clients_that_do_not_read_lose_their_event_streams(ask, service, monkeypatch):
    def status_of(connection):
        return int(connection.sock.recv(12).split()[1])

    def asked_once_more():
        with closing(opened(ask, "GET", "/api/v1/events")) as connection:
            return status_of(connection)

    stuck = [opened(ask, "GET", "/api/v1/events") for _ in range(MOST_LISTENERS)]
    assert {status_of(connection) for connection in stuck} == {200}
    assert asked_once_more() == 503
    monkeypatch.setattr(events, "SLOWEST_S", 0.2)
    monkeypatch.setattr(events, "EVERY_S", 0.02)
    service.told = "x" * 500_000
    wait_until(lambda: asked_once_more() == 200)
    for connection in stuck:
        connection.close()


def test_what_waits_for_a_slow_client_is_the_newest_of_each_camera():
    async def never():
        raise AssertionError

    slow, whole = _Listener(), Events(never)
    whole._listeners.add(slow)
    for frame in range(1000):
        newest = {camera: {"id": f"{camera}/{frame}", "camera": camera} for camera in ("gate", "yard")}
        whole._tell(StreamedMoment(f'{{"now": {frame}}}'.encode(), newest))
    assert list(slow.waiting) == ["status", "answer gate", "answer yard"]
    assert slow.waiting["status"] == b'event: status\ndata: {"now": 999}\n\n'
    assert b'"gate/999"' in slow.waiting["answer gate"]
    slow.waiting.clear()
    whole._tell(StreamedMoment(b"{}", newest))
    assert list(slow.waiting) == ["status"]
