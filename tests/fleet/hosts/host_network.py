"""Hosts on one machine, joined by links that are slow, far and lossy, for tests of several servers.

    with HostNetwork(3, Link(rate_mbit_s=50, delay_ms=20, loss=0.01)) as network:
        head = network.popen(1, ["ray", "start", "--head", "--block"])
        network.partition(1)

Hosts are numbered from 1 and have an address each, by which they reach each other and nothing else. They
share the files, cores and process numbers of the machine: `ray start --head`, which looks for a head among
all processes, takes that of another host for its own.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from host_namespaces import address, kill_all, remove
from host_wires import Counts, Link
from waiting import HANG_GUARD_S

_CLONE_NEWNET = 0x40000000


class HostNetwork:
    """Hosts that are there until ``close``, or until this process ends, however it ends."""

    def __init__(self, hosts=3, link=Link(), seed=0):  # noqa: B008 - frozen
        self._relay = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("host_relay.py"),
                json.dumps([hosts, asdict(link), seed]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # outlives what is sent to this process's group
        )
        self.names = {}
        ready = self._relay.stdout.readline()
        if not ready:
            self.close()
            raise RuntimeError("the relay of the hosts did not start; it said why on standard error")
        self.names = dict(enumerate(json.loads(ready), start=1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Kills all processes of the hosts and deletes them."""
        self._relay.stdin.close()
        try:
            self._relay.wait(HANG_GUARD_S)
        finally:
            self._relay.kill()
            self._relay.wait()
            self._relay.stdout.close()
            for name in self.names.values():
                remove(name)

    def address(self, host):
        """Returns the IPv4 address of a host."""
        return address(host)

    def popen(self, host, command, **options):
        """Starts a command in a host, with the options of ``subprocess.Popen``; the pid is the command's."""
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], **options)

    def run(self, host, command, **options):
        """Runs a command in a host to its end, as ``subprocess.run``."""
        return subprocess.run(["ip", "netns", "exec", self.names[host], *command], check=False, **options)

    def socket(self, host, kind=socket.SOCK_STREAM):
        """Returns an IPv4 socket of this process that is in a host."""

        def inside():
            netns = os.open(f"/run/netns/{self.names[host]}", os.O_RDONLY)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(netns, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(netns)
            return socket.socket(socket.AF_INET, kind)

        # A socket stays where it was made; the thread that went there ends, and this one has not moved.
        with ThreadPoolExecutor(1) as traveller:
            return traveller.submit(inside).result()

    def set_link(self, one, other, link):
        """Joins two hosts by another link."""
        self._command("set_link", one, other, asdict(link))

    def partition(self, host):
        """Cuts a host off from all others; when this returns, nothing more arrives."""
        self._command("partition", host)

    def heal(self, host):
        """Joins a host to the others again."""
        self._command("heal", host)

    def kill(self, host):
        """Kills all processes of a host, as a power cut does, and waits for that; the host itself remains."""
        kill_all(self.names[host])

    def counts(self):
        """Returns the ``Counts`` of each pair of hosts, sender first."""
        return {(one, other): Counts(**counts) for one, other, counts in self._command("counts")}

    def _command(self, *words):
        self._relay.stdin.write(json.dumps(words) + "\n")
        self._relay.stdin.flush()
        reply = self._relay.stdout.readline()
        if not reply:
            raise RuntimeError(f"the relay of the hosts ended at {words}")
        return json.loads(reply)
