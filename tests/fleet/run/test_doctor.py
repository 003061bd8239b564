"""What a host finds on itself, and measures to another one on this machine."""

import os
import socket
import struct
import threading
import time

import pytest

from ekya.fleet.run import doctor
from ekya.fleet.run.doctor import Asked, HostDoctor, missing


@pytest.fixture
def free_port():
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


def test_a_host_that_has_everything_lacks_nothing(tmp_path, free_port, monkeypatch):
    video = tmp_path / "yard.mp4"
    video.write_bytes(b"frames")
    monkeypatch.setenv("CAM_PASSWORD", "secret")
    assert list(missing(Asked(tmp_path, free_port, (video, tmp_path), ("CAM_PASSWORD",)))) == []


def test_missing_files_variables_and_ports_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        file, variable, of_port = missing(Asked(tmp_path, port, (tmp_path / "gone.mp4",), ("CAM_PASSWORD",)))
    assert file == f"{tmp_path / 'gone.mp4'} is missing; copy it to this path"
    assert variable.startswith("the environment variable CAM_PASSWORD is not set")
    assert of_port.startswith(f"port {port} is not free")


def test_a_file_that_cannot_be_read_is_told(tmp_path, free_port, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: False)  # For root everything can be read.
    (told,) = missing(Asked(tmp_path, free_port, (tmp_path,)))
    assert told == f"{tmp_path} cannot be read; change its permissions"


def test_a_host_reports_its_machine_and_the_mode_of_its_token(tmp_path, free_port, monkeypatch):
    token = tmp_path / "token"
    token.write_text("very-secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    facts = HostDoctor("127.0.0.1").examined(Asked(tmp_path, free_port))
    assert facts.versions.keys() == {"Python", "ekya", "ray", "torch"}
    assert "Memory" in facts.machine["findings"]
    assert facts.token == (str(token), "644")
    assert any(f"chmod 600 {token}" in one for one in facts.wrong)
    assert "very-secret" not in repr(facts)


def test_a_link_is_measured_between_two_hosts(tmp_path, free_port, monkeypatch):
    monkeypatch.setattr(doctor, "SENDS_BYTES", 8 * 1024**2)
    one, other = HostDoctor("127.0.0.1"), HostDoctor("127.0.0.1")
    link = one.measured("127.0.0.1", other.examined(Asked(tmp_path, free_port)).port)
    assert link.mb_s > 10
    assert 0 < link.round_trip_us < 500_000
    assert abs(link.ahead_us) <= link.round_trip_us / 2


@pytest.fixture
def slow_host():
    """Port of a host that is 1 s ahead, answers after 20 ms and sends 5 MB/s."""

    def serve():
        connection, _ = server.accept()
        with connection:
            while connection.recv(1) == b"t":
                time.sleep(0.02)
                connection.sendall(struct.pack("!q", time.time_ns() + 1_000_000_000))
            try:
                while True:
                    connection.sendall(bytes(50_000))
                    time.sleep(0.01)
            except OSError:
                gone.set()

    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        assert gone.wait(5.0)


def test_a_slow_link_is_measured_for_a_bounded_time(slow_host, monkeypatch):
    monkeypatch.setattr(doctor, "SENDS_S", 0.5)
    began_s = time.monotonic()
    link = HostDoctor("127.0.0.1").measured("127.0.0.1", slow_host)
    assert time.monotonic() - began_s < 20 * 0.02 + 0.5 + 1.0
    assert 0.5 < link.mb_s <= 5.5
    assert link.round_trip_us >= 20_000
    assert abs(link.ahead_us - 1_000_000) <= link.round_trip_us / 2


def test_a_host_that_cannot_be_reached_is_told(free_port):
    told = HostDoctor("127.0.0.1").measured("127.0.0.1", free_port)
    assert told == "no connection (Connection refused); let all TCP ports through between the two"


def test_a_host_that_goes_away_meanwhile_is_told():
    def serve():
        connection, _ = server.accept()
        connection.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        told = HostDoctor("127.0.0.1").measured("127.0.0.1", server.getsockname()[1])
        thread.join()
    assert told.startswith("no connection (the other host ended it)")
