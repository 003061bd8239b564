"""What wires between hosts do to packets: a rate, a delay, losses and partitions; without a clock or I/O."""

import heapq
import random
from dataclasses import dataclass
from itertools import count, permutations

BURST_BYTES = 15_000
"""What a wire that was idle carries at once, as the depth of its token bucket: ten packets."""


@dataclass(frozen=True)
class Link:
    """What joins two hosts, the same in both directions; the delay is of one direction.

    A packet that would wait longer than ``queue_ms`` for its turn is dropped, as by a router that is full.
    """

    rate_mbit_s: float = 50.0
    delay_ms: float = 20.0
    loss: float = 0.01
    queue_ms: float = 100.0


@dataclass
class Counts:
    """Packets that one host sent to another, by what became of them, and the bytes of those that arrived."""

    sent: int = 0
    arrived: int = 0
    lost: int = 0
    dropped: int = 0
    cut: int = 0
    arrived_bytes: int = 0


class _Wire:
    """One direction of a link; ``free_s`` is when its token bucket will have paid for all it has accepted."""

    __slots__ = ("counts", "free_s", "link")

    def __init__(self, link):
        self.link, self.free_s, self.counts = link, 0.0, Counts()

    def leaves_s(self, size, now_s):
        """Returns when a packet of ``size`` bytes has left the queue; None if it finds no place there."""
        rate_bytes_s = self.link.rate_mbit_s * 125_000
        free_s = max(self.free_s, now_s - BURST_BYTES / rate_bytes_s) + size / rate_bytes_s
        if free_s - now_s > self.link.queue_ms / 1000:
            return None
        self.free_s = free_s
        return max(now_s, free_s)


class Wires:
    """Packets under way between hosts 1 to N, each pair joined by a link; times have any origin."""

    def __init__(self, hosts, link, seed):
        self._wires = {pair: _Wire(link) for pair in permutations(range(1, hosts + 1), 2)}
        self._draw = random.Random(seed).random
        self._apart = set()
        self._under_way = []
        self._number = count()

    def set_link(self, one, other, link):
        """Joins two hosts by another link from now on; what is under way arrives as before."""
        self._wires[one, other].link = self._wires[other, one].link = link

    def partition(self, host):
        """Cuts a host off from all others, with what is under way."""
        self._apart.add(host)
        for _, _, pair, _ in self._under_way:
            self._wires[pair].counts.cut += host in pair
        self._under_way = [packet for packet in self._under_way if host not in packet[2]]
        heapq.heapify(self._under_way)

    def heal(self, host):
        """Joins a host to the others again."""
        self._apart.discard(host)

    def send(self, source, target, packet, now_s):
        """Takes a packet; one for no host, or for its sender, vanishes uncounted."""
        wire = self._wires.get((source, target))
        if wire is None:
            return
        counts = wire.counts
        counts.sent += 1
        if self._apart and (source in self._apart or target in self._apart):
            counts.cut += 1
        elif (leaves_s := wire.leaves_s(len(packet), now_s)) is None:
            counts.dropped += 1
        elif self._draw() < wire.link.loss:
            counts.lost += 1
        else:
            arrives_s = leaves_s + wire.link.delay_ms / 1000
            heapq.heappush(self._under_way, (arrives_s, next(self._number), (source, target), packet))

    def next_s(self):
        """Returns when the next packet arrives, or None."""
        return self._under_way[0][0] if self._under_way else None

    def arrivals(self, now_s):
        """Yields target and packet of all that has arrived by now, in order."""
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, pair, packet = heapq.heappop(self._under_way)
            counts = self._wires[pair].counts
            counts.arrived += 1
            counts.arrived_bytes += len(packet)
            yield pair[1], packet

    def counts(self):
        """Returns the counts of each pair, sender first."""
        return {pair: wire.counts for pair, wire in self._wires.items()}
