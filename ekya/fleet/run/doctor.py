"""Examines all sites of a fleet at once, and the links between them by calls as trainings make them."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any, TypeVar

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.host_facts import FleetFacts, Link, Pair, SiteHostFacts, link_of, steps_of
from ekya.fleet.servers_file import ServerConfig
from ekya.runtime.driver.machine_report import examination_as_json, examine_machine, installed_versions
from ekya.streams.ingest.credentials import find_variables

DOCTOR = "doctor"
"""Name under which a site offers its ``HostDoctor``."""

SENDS_S = 2.0
"""Time of all transfers over a link together."""

FIRST_BYTES, MOST_BYTES = 1 << 16, 1 << 26
"""Sizes of the first transfer, and of the largest."""

_TRIPS = 20
_ANSWERS_S = 5.0
_LINK_WITHIN_S = 30.0

_Key = TypeVar("_Key")


def examine_fleet(
    handles: Mapping[SiteName, Handle], within_s: float, watch: Callable[[str, int, int], None]
) -> FleetFacts:
    """Examines every site, and all links between those that answer.

    Args:
        handles: the doctors of the sites, as all sites reach them.
        within_s: time for the sites' answers.
        watch: receives what is asked for, the number of answers, and that of questions.
    """
    hosts: dict[SiteName, SiteHostFacts] = {}
    wrong: list[str] = []
    questions = {site: handle.call("examine_host") for site, handle in handles.items()}
    for answered, (site, facts) in enumerate(_answers(questions, within_s), 1):
        watch("sites", answered, len(handles))
        if not isinstance(facts, SiteHostFacts):
            wrong.append(f"{site}: {facts}")
        elif facts.site != site:
            wrong.append(f"{site}: at its address is the site {facts.site}; correct one of the addresses")
        else:
            hosts[site] = facts
    links: dict[Pair, Link] = {}
    done, ways_there = 0, len(hosts) * (len(hosts) - 1)
    for step in steps_of(sorted(hosts)):
        ways = {way: handles[way[1]].call("measure_link", handles[way[0]]) for way in step}
        for (origin, target), link in _answers(ways, _LINK_WITHIN_S):
            if isinstance(link, Link):
                links[origin, target] = link
            else:
                wrong.append(f"{target} calls {origin}: {link}")
            done += 1
            watch("links", done, ways_there)
    return FleetFacts(dict(sorted(hosts.items())), dict(sorted(links.items())), tuple(sorted(wrong)))


class HostDoctor:
    """Examines the machine of a site, and measures links to it.

    Args:
        site: its name.
        read: returns its server with changes of the fleet file; raises UserError where this machine cannot
            run it.
        runs: folder of runs.
        wall_ns: this machine's clock.
        steady_ns: a clock that is never set.
    """

    def __init__(
        self,
        site: SiteName,
        read: Callable[[Mapping[str, object]], ServerConfig],
        runs: Path,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._site, self._read, self._runs = site, read, runs
        self._wall_ns, self._steady_ns = wall_ns, steady_ns

    def examine_host(self) -> SiteHostFacts:
        """Returns what ``ekya doctor`` finds here, and what the site's fleet lacks."""
        examination = examine_machine(self._runs)
        unfit = [f"{finding.what}: {finding.found}" for finding in examination.findings if not finding.fine]
        try:
            unfit += missing(self._read({}).fleet)
        except UserError as error:
            unfit.append(str(error))
        return SiteHostFacts(self._site, installed_versions(), examination_as_json(examination), tuple(unfit))

    def time_ns(self) -> int:
        """Returns the time of this machine's clock."""
        return self._wall_ns()

    def send_zeros(self, size: int) -> bytes:
        """Returns this number of zero bytes."""
        return bytes(size)

    def measure_link(self, other: Handle) -> Link | str:
        """Returns the link from the site of another doctor to this one, or why there is none."""
        try:
            trips = [self._trip(other) for _ in range(_TRIPS)]
            return link_of(trips, list(self._arrivals(other)))
        except CallError as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {_ANSWERS_S:g} s; see what else uses the link"

    def _trip(self, other: Handle) -> tuple[int, int, int]:
        sent_ns = self._wall_ns()
        there_ns = other.call("time_ns").result(_ANSWERS_S)
        return sent_ns, there_ns, self._wall_ns()

    def _arrivals(self, other: Handle) -> Iterator[tuple[int, int]]:
        """Yields times and the bytes that had arrived; each transfer has twice the size of the one before."""
        since_ns, arrived, size = self._steady_ns(), 0, FIRST_BYTES
        until_ns = since_ns + round(SENDS_S * 1e9)
        yield since_ns, arrived
        next_ends_ns = since_ns
        while size <= MOST_BYTES and next_ends_ns <= until_ns:
            arrived += len(other.call("send_zeros", size).result(_ANSWERS_S))
            now_ns = self._steady_ns()
            yield now_ns, arrived
            next_ends_ns = now_ns + 2 * (now_ns - since_ns)
            since_ns, size = now_ns, 2 * size


def missing(fleet: FleetConfig) -> Iterator[str]:
    """Yields a sentence for each file, variable or port that a fleet lacks here; all its files exist."""
    for file in _paths_in(fleet.model_dump()):
        if not os.access(file, os.R_OK):
            yield f"{file} cannot be read; change its permissions"
    for name in find_variables(fleet.named_secrets):
        if name not in os.environ:
            yield f"the environment variable {name} is not set; set it, and start the site again"
    try:
        socket.create_server(("", fleet.http.port)).close()
    except OSError as error:
        yield f"port {fleet.http.port} is not free ({error.strerror}); free it, or change http.port"


def _paths_in(value: object) -> Iterator[Path]:
    """Yields the paths of a fleet, given as nested values."""
    match value:
        case Path():
            yield value
        case dict():
            yield from _paths_in(list(value.values()))
        case list() | tuple():
            for one in value:
                yield from _paths_in(one)


def _answers(questions: Mapping[_Key, "Future[Any]"], within_s: float) -> Iterator[tuple[_Key, Any]]:
    """Yields answers as they come, and for those that failed or are late the reason."""
    keys = {told: key for key, told in questions.items()}
    try:
        for told in as_completed(list(keys), within_s):
            key = keys.pop(told)
            try:
                yield key, told.result()
            except CallError as error:
                yield key, str(error)
    except TimeoutError:
        for told, key in keys.items():
            told.cancel()
            yield key, f"no answer within {within_s:g} s; look at the machine, and at what its site says"
