"""Finds problems in facts of hosts and links: versions that differ, clocks that are off, slow links."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ekya.fleet.policy.places import SiteName

Pair = tuple[SiteName, SiteName]
"""Origin and target of a transfer."""

MOST_OFFSET_US = 2_000_000
"""Largest offset of a clock. A run needs no common one, but logs of two sites are hard to compare."""

LEAST_RATE = 0.8
"""Part of the servers file's rate that a link must reach, lest transfers arrive much later than planned."""


@dataclass(frozen=True, slots=True)
class SiteHostFacts:
    """What a host found on itself.

    Attributes:
        site: its name.
        versions: of Python and packages, without a build's label (``+cu128``); empty: not installed.
        machine: result of ``ekya doctor`` there, as JSON values.
        wrong: one sentence with a remedy for each problem.
    """

    site: SiteName
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two hosts.

    Attributes:
        mb_s: megabytes a second in one call after another.
        round_trip_us: the shortest.
        ahead_us: offset of the origin's clock from the target's; the error is at most half the round trip.
    """

    mb_s: float
    round_trip_us: int
    ahead_us: int


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What was found: hosts that answered, links that work, and a sentence for each problem of the others."""

    hosts: Mapping[SiteName, SiteHostFacts]
    links: Mapping[Pair, Link]
    wrong: tuple[str, ...]

    @property
    def clocks(self) -> dict[SiteName, tuple[int, int]]:
        """How far each clock is ahead of the median one, and the largest error of that; in microseconds."""
        own = {name: [(0, 0)] for name in self.hosts}
        for (origin, _), link in self.links.items():
            own[origin].append((link.ahead_us, link.round_trip_us // 2))
        return {name: median_low(offsets) for name, offsets in own.items()}

    def problems(self, told: Mapping[Pair, float]) -> tuple[str, ...]:
        """Returns a sentence with a remedy for each problem; ``told``: rates of the servers file in MB/s."""
        own = (f"{name}: {one}" for name, its in self.hosts.items() for one in its.wrong)
        versions = version_problems({name: its.versions for name, its in self.hosts.items()})
        clocks = clock_problems(self.clocks)
        return (*self.wrong, *own, *versions, *clocks, *rate_problems(self.links, told))


def link_of(trips: Sequence[tuple[int, int, int]], marks: Sequence[tuple[int, int]]) -> Link:
    """Returns a link by its shortest trip, as in NTP, and the later half of a transfer, at TCP's full speed.

    Args:
        trips: times of sending, of the origin's answer by its clock, and of arrival; nanoseconds.
        marks: times in nanoseconds, and the bytes that had arrived; at least two.
    """
    took_ns, ahead_ns = min((back - sent, there - (sent + back) // 2) for sent, there, back in trips)
    middle_ns = (marks[0][0] + marks[-1][0]) // 2
    since_ns, before = max(mark for mark in marks[:-1] if mark[0] <= middle_ns)
    mb_s = (marks[-1][1] - before) * 1e3 / max(marks[-1][0] - since_ns, 1)
    return Link(mb_s, took_ns // 1000, ahead_ns // 1000)


def version_problems(versions: Mapping[SiteName, Mapping[str, str]]) -> Iterator[str]:
    """Yields versions that differ from the most frequent one, of several the newest."""
    for package in sorted({package for its in versions.values() for package, found in its.items() if found}):
        count = Counter(found for its in versions.values() if (found := its.get(package)))
        usual = max(count, key=lambda one: (count[one], [int(digits) for digits in re.findall(r"\d+", one)]))
        for name, its in versions.items():
            if its.get(package, "") not in ("", usual):
                others = ", ".join(other for other in versions if versions[other].get(package) == usual)
                yield f"{name}: {package} is {its[package]}, but {usual} on {others}; install {usual} there"


def clock_problems(offsets: Mapping[SiteName, tuple[int, int]]) -> Iterator[str]:
    """Yields clocks that are certainly off by more than ``MOST_OFFSET_US``."""
    for name, (ahead_us, error_us) in offsets.items():
        if abs(ahead_us) - error_us > MOST_OFFSET_US:
            off = f"{abs(ahead_us) / 1e6:.2f} s {'ahead' if ahead_us > 0 else 'behind'}"
            yield f"{name}: its clock is {off} (within {error_us / 1e3:.1f} ms); set it by NTP"


def rate_problems(links: Mapping[Pair, Link], told: Mapping[Pair, float]) -> Iterator[str]:
    """Yields links that are slower than told, in megabytes a second."""
    for (origin, target), said in told.items():
        link = links.get((origin, target))
        if link is not None and link.mb_s < LEAST_RATE * said:
            found = f"{link.mb_s:.3g} MB/s, but {said:g} in the servers file"
            yield f"{origin} to {target}: {found}; use a file of --write, which has the measured rates"


def steps_of(hosts: Sequence[SiteName]) -> Iterator[tuple[Pair, ...]]:
    """Yields all ordered pairs in steps, in none of which a host occurs twice: no transfer slows another."""
    ring: list[SiteName | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in ring[1:]:
        halves = zip(ring[: len(ring) // 2], reversed(ring), strict=False)
        pairs = [(one, other) for one, other in halves if one is not None and other is not None]
        yield tuple(pairs)
        yield tuple((other, one) for one, other in pairs)
        ring = [ring[0], ring[-1], *ring[1:-1]]
