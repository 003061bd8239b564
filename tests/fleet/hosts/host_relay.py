"""Process that owns hosts and carries their packets; ``host_network`` starts it and commands it.

The kernel's netem would do this, but many kernels are built without it. Each line of input is a JSON list,
the name of a command and its arguments; each line of output is its result. At the end of input, so also when
its parent was killed, the hosts are taken down. 50 Mbit/s take a fifth of a virtual core of an AMD
EPYC, and 210 Mbit/s between three hosts two fifths.
"""

import contextlib
import json
import os
import select
import signal
import sys
from dataclasses import asdict

from host_namespaces import SUBNET, make, remove
from host_wires import Link, Wires
from waiting import call_at

PACKET_BYTES = 2048
"""Room for any packet: devices have an MTU of 1500."""

BATCH = 64
"""Packets that are read from one device before the others have their turn."""


class Relay:
    """The commands, and the loop between them."""

    def __init__(self, hosts, link, seed):
        self.names = {host: f"ekya-{os.getpid()}-{host}" for host in range(1, hosts + 1)}
        self._wires = Wires(hosts, link, seed)
        self._commands = {
            "set_link": lambda one, other, link: self._wires.set_link(one, other, Link(**link)),
            "partition": self._wires.partition,
            "heal": self._wires.heal,
            "counts": lambda: [[*pair, asdict(counts)] for pair, counts in self._wires.counts().items()],
        }
        self._tuns = {}

    def run(self):
        """Makes the hosts, says so, relays until the input ends, and takes them down."""
        try:
            for host, name in self.names.items():
                self._tuns[host] = make(name, host)
            _say(list(self.names.values()))
            self._serve()
        finally:
            for tun in self._tuns.values():
                os.close(tun)
            for name in self.names.values():
                remove(name)

    def _serve(self):
        commands, pending, ready = sys.stdin.fileno(), b"", []

        def waits(now_ns):
            nonlocal ready
            next_s = self._wires.next_s()
            wait_s = None if next_s is None else max(0.0, next_s - now_ns / 1e9)
            ready, _, _ = select.select([commands, *self._tuns.values()], [], [], wait_s)

        def carries(now_ns):
            for host, tun in self._tuns.items():
                if tun in ready:
                    self._take(host, tun, now_ns / 1e9)
            for host, packet in self._wires.arrivals(now_ns / 1e9):
                with contextlib.suppress(OSError):  # the host has taken its device down
                    os.write(self._tuns[host], packet)

        while True:
            call_at(waits)
            call_at(carries)
            if commands in ready:
                read = os.read(commands, 65536)
                if not read:
                    return
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    name, *arguments = json.loads(line)
                    _say(self._commands[name](*arguments))

    def _take(self, host, tun, now_s):
        """Reads what a host has sent; what is not IPv4 to a host, such as a search for routers, vanishes."""
        for _ in range(BATCH):
            try:
                packet = os.read(tun, PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4 and packet[16:19] == SUBNET:
                self._wires.send(host, packet[19], packet, now_s)


def _say(result):
    print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    # Hosts keep all cores busy; a relay that waits for them would add to every delay.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    # Ctrl-C is for whoever started this; the end of input follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hosts, link, seed = json.loads(sys.argv[1])
    Relay(hosts, Link(**link), seed).run()
