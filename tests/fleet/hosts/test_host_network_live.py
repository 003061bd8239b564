"""Hosts of one machine as their processes and sockets see them."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from host_namespaces import names, processes, why_not
from host_network import HostNetwork
from host_wires import Link

pytestmark = pytest.mark.live

LINK = Link(rate_mbit_s=50, delay_ms=20, loss=0)
PORT = 5000
SO_SNDBUFFORCE = 32


@pytest.fixture(scope="module", autouse=True)
def hosts_possible():
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def network(hosts_possible):
    with HostNetwork(3, LINK) as network:
        yield network


def _udp(network, host):
    """Returns a bound UDP socket that waits a second for a packet."""
    bound = network.socket(host, socket.SOCK_DGRAM)
    bound.bind(("", PORT))
    bound.settimeout(1)
    return bound


def _received(bound, wait_s):
    """Counts packets until none comes for ``wait_s``."""
    bound.settimeout(wait_s)
    count = 0
    try:
        while bound.recv(1000):
            count += 1
    except TimeoutError:
        return count


def _connected(network, source, target):
    """Returns the two ends of a TCP connection."""
    with network.socket(target) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", PORT))
        listening.listen()
        there = network.socket(source)
        there.settimeout(10)
        there.connect((network.address(target), PORT))
        here, _ = listening.accept()
        here.settimeout(10)
    return there, here


def _goodput_mbit_s(network, source, target, seconds=1.0):
    """Returns what one TCP connection carries, its first half second left out."""
    there, here = _connected(network, source, target)
    there.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 500_000)  # more than the link holds, and soon sent
    with there, here, ThreadPoolExecutor(1) as thread:
        until_s = time.monotonic() + 0.5 + seconds

        def send():
            while time.monotonic() < until_s:
                there.send(bytes(65536))
            there.shutdown(socket.SHUT_WR)

        sending = thread.submit(send)
        size, begun_s = 0, time.monotonic() + 0.5
        while (now_s := time.monotonic()) < until_s and (read := here.recv(1 << 20)):
            size += len(read) if now_s >= begun_s else 0
        measured = size * 8e-6 / (time.monotonic() - begun_s)
        while here.recv(1 << 20):
            continue
        sending.result()
    return measured


def test_a_packet_there_and_back_takes_twice_the_delay(network):
    took_ms = []
    with _udp(network, 1) as one, _udp(network, 2) as two:
        for number in range(25):
            sent_s = time.monotonic()
            one.sendto(bytes([number]), (network.address(2), PORT))
            packet, sender = two.recvfrom(100)
            two.sendto(packet, sender)
            assert one.recv(100) == bytes([number])
            took_ms.append((time.monotonic() - sent_s) * 1000)
    assert min(took_ms) >= 40
    assert statistics.median(took_ms) < 44


@pytest.mark.parametrize("rate_mbit_s", [50, 8])
def test_a_connection_gets_the_rate_of_its_link_and_no_more(network, rate_mbit_s):
    # A queue that is never full drops nothing, so that TCP has no reason to send less.
    network.set_link(1, 2, Link(rate_mbit_s, delay_ms=20, loss=0, queue_ms=2000))
    measured = []
    # Other load on the machine can only take from it: the best of three counts.
    while len(measured) < 3 and max(measured, default=0) <= 0.88 * rate_mbit_s:
        measured.append(_goodput_mbit_s(network, 1, 2))
    network.set_link(1, 2, LINK)
    assert 0.88 * rate_mbit_s < max(measured) < rate_mbit_s


def test_a_lost_packet_is_counted(network):
    # Between two hosts of which no other test's connections are being closed.
    network.set_link(3, 1, Link(rate_mbit_s=50, delay_ms=5, loss=0.01))
    before = network.counts()[3, 1]
    received = 0
    with _udp(network, 3) as three, _udp(network, 1) as one:
        for _ in range(30):
            for _ in range(100):
                three.sendto(bytes(100), (network.address(1), PORT))
            received += _received(one, 0.01)
        received += _received(one, 0.2)
    after = network.counts()[3, 1]
    network.set_link(3, 1, LINK)
    lost = after.lost - before.lost
    assert (after.sent - before.sent, after.arrived - before.arrived) == (3000, received)
    assert received + lost == 3000
    assert 8 <= lost <= 52, "30 of 3000 were to be lost, give or take four deviations"


def test_a_partition_stops_one_host_only_and_connections_outlive_it(network):
    there, here = _connected(network, 1, 2)
    other, beside = _connected(network, 2, 3)
    with there, here, other, beside:
        there.sendall(b"before")
        assert here.recv(100) == b"before"
        network.partition(1)
        there.sendall(b"meanwhile")
        other.sendall(b"beside")
        assert beside.recv(100) == b"beside"
        here.settimeout(0.5)
        with pytest.raises(TimeoutError):
            here.recv(100)
        network.heal(1)
        here.settimeout(10)
        assert here.recv(100) == b"meanwhile"


def test_a_killed_host_has_no_processes_and_the_others_keep_theirs(network):
    sleeping = network.popen(2, ["sleep", "600"])
    network.run(2, ["sh", "-c", "setsid sleep 600 &"])
    other = network.popen(3, ["sleep", "600"])
    until_s = time.monotonic() + 10
    while len(processes(network.names[2])) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert len(processes(network.names[2])) == 2
    network.kill(2)
    assert processes(network.names[2]) == []
    assert sleeping.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    network.kill(3)
    other.wait(10)
    assert network.run(2, ["echo", "up"], capture_output=True, text=True).stdout == "up\n"


def test_nothing_is_left_of_hosts_after_a_failure():
    with pytest.raises(ZeroDivisionError), HostNetwork(2) as network:
        process = network.popen(1, ["sleep", "600"])
        made = set(network.names.values())
        assert made <= set(names())
        raise ZeroDivisionError
    assert process.wait(10) == -signal.SIGKILL
    assert not made & set(names())


def test_nothing_is_left_of_hosts_whose_owner_was_killed():
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from host_network import HostNetwork; network = HostNetwork(2);"
            "network.popen(1, ['sleep', '600']); print(*network.names.values(), flush=True); input()",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        made = set(owner.stdout.readline().split())
        assert made and made <= set(names())
        owner.kill()
    until_s = time.monotonic() + 10
    while made & set(names()) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not made & set(names())
