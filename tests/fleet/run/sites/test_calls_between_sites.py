"""Calls over HTTP on this machine: results, errors, peers that are gone, and what is refused; the token."""

import pickle
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import closing
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import HANG_GUARD_S

from ekya import __version__
from ekya.core.errors import FullDiskError, UserError
from ekya.fleet.run.calls import CallError, LocalHandle
from ekya.fleet.run.sites import client, server
from ekya.fleet.run.sites.client import SiteHandle
from ekya.fleet.run.sites.server import TOKEN_VARIABLE, WRONG_TOKEN_S, SiteServer, fleet_token
from ekya.models.training.trainer import EpochResult

TOKEN, OTHER = "t" * 40, "o" * 40
METHODS = ("add", "same", "wait", "complain", "fail", "strange", "missing")


class Adder:
    def __init__(self):
        self.go_on, self.waiting, self.done = threading.Event(), threading.Semaphore(0), threading.Event()

    def add(self, a, b):
        return a + b

    def same(self, value):
        return value

    def wait(self):
        self.waiting.release()
        self.go_on.wait(HANG_GUARD_S)
        self.done.set()
        return "waited"

    def complain(self):
        raise FullDiskError("free some space")

    def fail(self):
        raise ValueError("a bug")

    def strange(self):
        return object()

    def hidden(self):
        return "hidden"


@pytest.fixture
def adder():
    adder = Adder()
    yield adder
    adder.go_on.set()


@pytest.fixture
def site(adder):
    with closing(SiteServer("127.0.0.1", 0, TOKEN)) as site:
        site.offer_object("west/adder", LocalHandle(adder, threads=100), METHODS)
        yield site


@pytest.fixture
def handle(site):
    return SiteHandle(site.address, "west/adder", TOKEN)


def result(handle, method, *arguments):
    return handle.call(method, *arguments).result(HANG_GUARD_S)


def test_results_arrive(handle) -> None:
    assert result(handle, "add", 1, 2) == 3
    assert result(handle, "same", EpochResult(1, 0.5, 0.1)) == EpochResult(1, 0.5, 0.1)
    assert result(handle, "same", None) is None


def test_large_values_arrive_in_both_directions(handle) -> None:
    sent = np.arange(2_000_000, dtype=np.float64)
    arrived = result(handle, "same", sent)
    np.testing.assert_array_equal(arrived, sent)
    arrived += 1


def test_arguments_are_those_of_the_time_of_the_call(handle, adder) -> None:
    sent = np.zeros(3)
    told = handle.call("same", sent)
    sent += 1
    assert told.result(HANG_GUARD_S).sum() == 0


def test_a_handle_is_a_value(handle) -> None:
    assert handle == SiteHandle(handle.address, handle.name, OTHER)
    assert len({handle, pickle.loads(pickle.dumps(handle))}) == 1
    assert TOKEN not in repr(handle)
    assert result(handle, "same", handle).token == TOKEN


def test_errors_of_the_user_are_told_from_others(handle) -> None:
    with pytest.raises(UserError, match=r"^free some space$"):
        result(handle, "complain")
    for method, words in (
        ("fail", "ValueError: a bug"),
        ("strange", "cannot be sent to another site: <object"),
        ("missing", "AttributeError: .*missing"),
    ):
        with pytest.raises(CallError, match=f"^{method} of west/adder at 127.0.0.1:.*{words}"):
            result(handle, method)
    with pytest.raises(CallError, match=r"^add of west/adder at 127\.0\.0\.1:\d+: this cannot be sent"):
        result(handle, "add", object())


def test_calls_that_wait_hold_up_no_others(handle, adder) -> None:
    waiting = [handle.call("wait") for _ in range(60)]
    for _ in waiting:
        assert adder.waiting.acquire(timeout=HANG_GUARD_S)
    assert result(handle, "add", 1, 2) == 3
    assert not any(one.done() for one in waiting)
    adder.go_on.set()
    assert {one.result(HANG_GUARD_S) for one in waiting} == {"waited"}


def test_a_method_goes_on_without_its_caller(handle, adder) -> None:
    told = handle.call("wait")
    assert adder.waiting.acquire(timeout=HANG_GUARD_S)
    assert told.cancel()
    assert result(handle, "add", 1, 2) == 3
    assert not adder.done.is_set()
    adder.go_on.set()
    assert adder.done.wait(HANG_GUARD_S)


def test_only_what_is_offered_is_called(site, handle) -> None:
    with pytest.raises(CallError, match=r"^127\.0\.0\.1:\d+ has no object west/adder with this method"):
        result(handle, "hidden")
    with pytest.raises(CallError, match="has no object"):
        result(handle, "__init__")
    with pytest.raises(CallError, match="has no object east"):
        result(SiteHandle(site.address, "east", TOKEN), "add", 1, 2)
    site.withdraw_object("west/adder")
    site.withdraw_object("west/adder")
    with pytest.raises(CallError, match="has no object"):
        result(handle, "add", 1, 2)


def test_a_wrong_token_is_refused_after_a_while(site, monkeypatch) -> None:
    async def sleep(seconds):
        slept_s.append(seconds)

    slept_s = []
    monkeypatch.setattr("ekya.fleet.run.sites.server.asyncio", SimpleNamespace(sleep=sleep))
    for token in (OTHER, TOKEN + "t", "ä"):
        with pytest.raises(CallError, match=r"refuses the token; .*EKYA_FLEET_TOKEN"):
            result(SiteHandle(site.address, "west/adder", token), "same", bytes(3_000_000))
    assert slept_s == [WRONG_TOKEN_S] * 3


def test_another_version_is_refused(handle, monkeypatch) -> None:
    monkeypatch.setattr(server, "__version__", "9.9")
    with pytest.raises(CallError, match=f"has Ekya 9.9, and this is {__version__}; install the same"):
        result(handle, "add", 1, 2)


def test_what_is_no_message_is_refused_at_both_ends(site, handle, monkeypatch) -> None:
    link = client._link(client.os.getpid(), TOKEN)
    monkeypatch.setattr(link, "codec", Garbler(link.codec, pack=True))
    with pytest.raises(CallError, match=r"^127\.0\.0\.1:\d+ answers 400: this is no message between sites"):
        result(handle, "add", 1, 2)
    monkeypatch.setattr(link, "codec", Garbler(link.codec.codec, pack=False))
    with pytest.raises(CallError, match=r"^127\.0\.0\.1:\d+: this is no message between sites"):
        result(handle, "add", 1, 2)


class Garbler:
    def __init__(self, codec, pack):
        self.codec, self.garbles = codec, pack

    def pack_value(self, value):
        return self.codec.pack_value(value)[: -1 if self.garbles else None]

    def unpack_value(self, packed):
        return self.codec.unpack_value(packed[:-1])


class Held:
    def __init__(self):
        self.told, self.asked = Future(), threading.Semaphore(0)

    def call(self, method, *arguments):
        if method == "fail":
            raise RuntimeError("it has no process")
        self.asked.release()
        return self.told

    def end_process(self):
        self.told.cancel()


def test_end_ends_the_object_and_withdraws_it(site) -> None:
    held = Held()
    site.offer_object("held", held, METHODS)
    handle = SiteHandle(site.address, "held", TOKEN)
    with pytest.raises(CallError, match="RuntimeError: it has no process"):
        result(handle, "fail")
    calls = [handle.call("add") for _ in range(3)]
    for _ in calls:
        assert held.asked.acquire(timeout=HANG_GUARD_S)
    assert not any(call.done() for call in calls)
    handle.end_process()
    for call in calls:
        with pytest.raises(CallError, match="was cancelled, since its object has ended"):
            call.result(HANG_GUARD_S)
    with pytest.raises(CallError, match="has no object held"):
        result(handle, "add", 1, 2)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "refuses connections"),
        ("host.invalid:80", "is no known host"),
        ("255.255.255.255:80", "cannot be reached: there is no route|does not answer|broken"),
        ("::::", "is no address"),
        ("127.0.0.1:port", "is no address"),
    ],
)
def test_sites_that_cannot_be_reached(address, words) -> None:
    with pytest.raises(CallError, match=f"^{address} ({words})") as raised:
        result(SiteHandle(address, "a", TOKEN), "add")
    assert "\n" not in str(raised.value)


def test_a_site_that_does_not_answer_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(client, "CONNECTS_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        # A link of its own, whose limit is the short one.
        with pytest.raises(CallError, match=r"does not answer within 0\.2 s"):
            result(SiteHandle(f"127.0.0.1:{address[1]}", "a", "n" * 40), "add")
        for filler in fillers:
            filler.close()


def test_a_connection_that_breaks_in_a_call_is_an_error(site, handle, adder) -> None:
    waiting = handle.call("wait")
    assert adder.waiting.acquire(timeout=HANG_GUARD_S)
    site.close()
    assert not adder.done.is_set(), "it does not wait for calls"
    with pytest.raises(CallError, match="has broken the connection"):
        waiting.result(HANG_GUARD_S)
    with pytest.raises(CallError, match="refuses connections"):
        result(handle, "add", 1, 2)
    site.close()


def test_a_peer_that_is_killed_is_an_error_at_once() -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True);"
        "c, _ = s.accept(); c.recv(9); print('got', flush=True); c.recv(1 << 20); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as peer:
        told = SiteHandle(f"127.0.0.1:{peer.stdout.readline().strip()}", "a", TOKEN).call("add")
        assert peer.stdout.readline() == "got\n"
        peer.kill()
        with pytest.raises(CallError, match="has broken the connection"):
            told.result(HANG_GUARD_S)


def test_vanished_peers_are_noticed() -> None:
    with client._watched_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ())) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT]
        assert [made.getsockopt(socket.IPPROTO_TCP, option) for option in tcp] == [10, 5, 4, 30_000]


def test_calls_use_watched_sockets(handle, monkeypatch) -> None:
    assert result(handle, "add", 1, 2) == 3
    connector = client._link(client.os.getpid(), TOKEN)._session.connector
    assert connector._socket_factory is client._watched_socket
    assert client._in_words(TimeoutError(110, "Connection timed out")).startswith("has vanished")


def test_a_handle_works_in_another_process(handle) -> None:
    code = (
        "import pickle, sys; handle = pickle.loads(sys.stdin.buffer.read());"
        "print(handle.call('add', 1, 2).result(), 'torch' in sys.modules); handle.end_process()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(handle), capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"3 False\n", b"")
    # What it asked to end at its own end has ended.
    with pytest.raises(CallError, match="has no object"):
        result(handle, "add", 1, 2)


def _called(handle, answers):
    answers.put(handle.call("add", 1, 2).result(HANG_GUARD_S))


def test_a_handle_works_in_a_fork(handle) -> None:
    assert result(handle, "add", 1, 2) == 3  # its link is of this process
    fork = get_context("fork")
    answers = fork.Queue()
    forked = fork.Process(target=_called, args=(handle, answers))
    forked.start()
    assert answers.get(timeout=HANG_GUARD_S) == 3
    forked.join(HANG_GUARD_S)
    assert forked.exitcode == 0


def test_addresses_for_others() -> None:
    with closing(SiteServer("0.0.0.0", 0, TOKEN, known_as="127.0.0.1")) as site:
        assert site.address.startswith("127.0.0.1:")
        port = int(site.address.partition(":")[2])
        with pytest.raises(UserError, match=rf"^0\.0\.0\.0:{port} cannot be listened on .*choose another"):
            SiteServer("0.0.0.0", port, TOKEN)
    with closing(SiteServer("::1", 0, TOKEN)) as site:
        assert site.address.startswith("[::1]:")
        site.offer_object("a", LocalHandle(Adder(), threads=1), METHODS)
        assert result(SiteHandle(site.address, "a", TOKEN), "add", 1, 2) == 3


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_a_missing_file_is_made_once_and_for_its_owner(tmp_path) -> None:
    path = tmp_path / "ekya" / "token"
    token = fleet_token(path)
    assert len(token) == 43
    assert fleet_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["token"]
    assert fleet_token(tmp_path / "other") != token


def test_the_default_is_in_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = fleet_token()
    assert (tmp_path / ".config/ekya/fleet_token").read_text().strip() == token


def test_the_variable_comes_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, " " + "t" * 40 + "\n")
    assert fleet_token(tmp_path / "token") == "t" * 40
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(UserError, match=r"^EKYA_FLEET_TOKEN: .*unset it$"):
        fleet_token(tmp_path / "token")


def test_a_file_that_others_can_read_or_without_a_token_is_refused(tmp_path) -> None:
    path = tmp_path / "token"
    fleet_token(path)
    path.chmod(0o640)
    with pytest.raises(UserError, match=r"token: .*chmod 600"):
        fleet_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(UserError, match="no token of at least 32 characters; remove the file"):
        fleet_token(path)


def test_another_process_may_make_the_file_first(tmp_path, monkeypatch) -> None:
    path = tmp_path / "token"
    first = fleet_token(path)
    monkeypatch.setattr(type(path), "exists", lambda _: False)
    assert fleet_token(path) == first
    assert len(list(tmp_path.iterdir())) == 1
