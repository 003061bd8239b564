"""Hosts of one machine as their processes and sockets see them."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from host_namespaces import names, processes, why_not
from host_network import HostNetwork
from host_wires import Link
from waiting import HANG_GUARD_S, wait_until

pytestmark = pytest.mark.live

LINK = Link(rate_mbit_s=50, delay_ms=20, loss=0)
PORT = 5000


@pytest.fixture(scope="module", autouse=True)
def hosts_possible():
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def network(hosts_possible):
    with HostNetwork(3, LINK) as network:
        yield network


def _udp(network, host):
    """Returns a bound UDP socket."""
    bound = network.socket(host, socket.SOCK_DGRAM)
    bound.bind(("", PORT))
    bound.settimeout(HANG_GUARD_S)
    return bound


def _connected(network, source, target):
    """Returns the two ends of a TCP connection."""
    with network.socket(target) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", PORT))
        listening.listen()
        there = network.socket(source)
        there.settimeout(HANG_GUARD_S)
        there.connect((network.address(target), PORT))
        here, _ = listening.accept()
        here.settimeout(HANG_GUARD_S)
    return there, here


def test_packets_and_connections_arrive_over_the_wire(network):
    """How late and how fast is a matter of the wires, which are tested without a clock."""
    before = network.counts()
    with _udp(network, 1) as one, _udp(network, 2) as two:
        for number in range(25):
            one.sendto(bytes([number]), (network.address(2), PORT))
            packet, sender = two.recvfrom(100)
            two.sendto(packet, sender)
            assert one.recv(100) == bytes([number])
    after = network.counts()
    assert [after[way].arrived - before[way].arrived for way in ((1, 2), (2, 1))] == [25, 25]
    there, here = _connected(network, 1, 2)
    size = 1_000_000
    with there, here, ThreadPoolExecutor(1) as thread:
        sending = thread.submit(there.sendall, bytes(size))
        while size:
            size -= len(here.recv(1 << 20))
        sending.result()
    assert network.counts()[1, 2].arrived_bytes - after[1, 2].arrived_bytes > 1_000_000


def test_a_lost_packet_is_counted(network):
    # Between two hosts of which no other test's connections are being closed.
    network.set_link(3, 1, Link(rate_mbit_s=50, delay_ms=5, loss=0.01))
    before = network.counts()[3, 1]

    def counted():
        """Returns what became of packets since."""
        now = network.counts()[3, 1]
        return now.sent - before.sent, now.arrived - before.arrived, now.lost - before.lost

    def all_counted(sent):
        return counted()[0] == sent == sum(counted()[1:])

    received = 0
    with _udp(network, 3) as three, _udp(network, 1) as one:
        for sent in range(100, 3001, 100):  # no more at a time than a socket keeps
            for _ in range(100):
                three.sendto(bytes(100), (network.address(1), PORT))
            wait_until(lambda sent=sent: all_counted(sent), lambda: str(counted()))
            while received < counted()[1]:
                received += len(one.recv(1000)) // 100
    network.set_link(3, 1, LINK)
    assert 8 <= counted()[2] <= 52, "30 of 3000 were to be lost, give or take four deviations"


def test_a_partition_stops_one_host_only_and_connections_outlive_it(network):
    there, here = _connected(network, 1, 2)
    other, beside = _connected(network, 2, 3)
    with there, here, other, beside:
        there.sendall(b"before")
        assert here.recv(100) == b"before"
        network.partition(1)
        cut = network.counts()[1, 2].cut
        there.sendall(b"meanwhile")
        other.sendall(b"beside")
        assert beside.recv(100) == b"beside"
        wait_until(lambda: network.counts()[1, 2].cut > cut)
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.recv(100)
        network.heal(1)
        here.settimeout(HANG_GUARD_S)
        assert here.recv(100) == b"meanwhile"


def test_a_killed_host_has_no_processes_and_the_others_keep_theirs(network):
    sleeping = network.popen(2, ["sleep", "600"])
    network.run(2, ["sh", "-c", "setsid sleep 600 &"])
    other = network.popen(3, ["sleep", "600"])
    wait_until(lambda: len(processes(network.names[2])) == 2)
    network.kill(2)
    assert processes(network.names[2]) == []
    assert sleeping.wait(HANG_GUARD_S) == -signal.SIGKILL
    assert other.poll() is None
    network.kill(3)
    other.wait(HANG_GUARD_S)
    assert network.run(2, ["echo", "up"], capture_output=True, text=True).stdout == "up\n"


def test_nothing_is_left_of_hosts_after_a_failure():
    with pytest.raises(ZeroDivisionError), HostNetwork(2) as network:
        process = network.popen(1, ["sleep", "600"])
        made = set(network.names.values())
        assert made <= set(names())
        raise ZeroDivisionError
    assert process.wait(HANG_GUARD_S) == -signal.SIGKILL
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
    wait_until(lambda: not made & set(names()))
