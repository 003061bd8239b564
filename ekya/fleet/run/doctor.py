"""Examines all nodes of a Ray cluster at once, and the links between them over plain TCP."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.host_facts import FleetFacts, HostFacts, Link, Pair, link_of, steps_of, token_problems
from ekya.runtime.actor_errors import in_words
from ekya.runtime.machine_report import as_json, examine, installed
from ekya.system.ray_environment import OF_ACTOR

SENDS_BYTES, SENDS_S = 64 * 1024**2, 2.0
"""A transfer ends after these bytes or this time, whichever is first."""

_TRIPS = 20
_ANSWERS_S = 5.0
_REMEDY = "see that the machine is well and has the same Ekya"
_LINK_WITHIN_S = 30.0
_CHUNK = bytes(1 << 18)
_TIME, _BYTES = b"t", b"b"
"""What a host asks another one for: the time, or bytes until it closes the connection."""

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a host is to have: a folder for runs, a free port, readable files, and set variables."""

    runs: Path
    port: int
    files: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()


class HostDoctor:
    """Actor that examines its host; while it lives, it tells everyone who connects the time, and sends zeros.

    Args:
        address: of the host.
    """

    def __init__(self, address: str) -> None:
        self._peer = ThreadingTCPServer((address, 0), _Answers)
        threading.Thread(target=self._peer.serve_forever, daemon=True).start()

    def examined(self, asked: Asked) -> HostFacts:
        """Returns what ``ekya doctor`` finds here, and what a fleet needs beside that."""
        examination, token = examine(asked.runs), _token()
        unfit = (f"{finding.what}: {finding.found}" for finding in examination.findings if not finding.fine)
        wrong = (*unfit, *missing(asked), *token_problems(*token))
        return HostFacts(installed(), as_json(examination), token, wrong, self._peer.server_address[1])

    def measured(self, address: str, port: int) -> Link | str:
        """Returns the link from another host to this one, or why there is none."""
        try:
            with socket.create_connection((address, port), _ANSWERS_S) as connection:
                trips = [_trip(connection) for _ in range(_TRIPS)]
                return link_of(trips, list(_arrivals(connection)))
        except OSError as error:
            return f"no connection ({error.strerror or error}); let all TCP ports through between the two"


class _Answers(BaseRequestHandler):
    """Answers a host that measures its link."""

    request: socket.socket

    def handle(self) -> None:
        try:
            self.request.settimeout(_ANSWERS_S)
            while asked := self.request.recv(1):
                if asked == _TIME:
                    self.request.sendall(struct.pack("!q", time.time_ns()))
                else:
                    for _ in range(SENDS_BYTES // len(_CHUNK)):
                        self.request.sendall(_CHUNK)
        except OSError:
            pass  # The other host has seen enough, or says itself what it misses.


def _trip(connection: socket.socket) -> tuple[int, int, int]:
    sent_ns = time.time_ns()
    connection.sendall(_TIME)
    answer = connection.recv(8, socket.MSG_WAITALL)
    if len(answer) < 8:
        raise ConnectionError("the other host ended it")
    return sent_ns, struct.unpack("!q", answer)[0], time.time_ns()


def _arrivals(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Yields times and the bytes that had arrived."""
    connection.sendall(_BYTES)
    yield time.monotonic_ns(), 0
    arrived, until_ns = len(connection.recv(1)), time.monotonic_ns() + round(SENDS_S * 1e9)
    yield time.monotonic_ns(), arrived
    while arrived < SENDS_BYTES and time.monotonic_ns() < until_ns:
        size = len(connection.recv(1 << 20))
        if size == 0:
            raise ConnectionError("the other host ended it")
        arrived += size
        yield time.monotonic_ns(), arrived


def missing(asked: Asked) -> Iterator[str]:
    """Yields a sentence for each file, variable or port that this host lacks."""
    for file in asked.files:
        if not file.exists():
            yield f"{file} is missing; copy it to this path"
        elif not os.access(file, os.R_OK):
            yield f"{file} cannot be read; change its permissions"
    for name in asked.variables:
        if name not in os.environ:
            yield f"the environment variable {name} is not set; set it, and start Ray there again"
    try:
        socket.create_server(("", asked.port)).close()
    except OSError as error:
        yield f"port {asked.port} is not free ({error.strerror}); free it, or change http.port"


def _token() -> tuple[str, str]:
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return str(path), f"{path.stat().st_mode & 0o777:o}" if path.exists() else "absent"


def examine_fleet(
    asked: Mapping[NodeName, Asked],
    of_others: Asked,
    address: str,
    within_s: float,
    watch: Callable[[str, int, int], None],
) -> FleetFacts:
    """Examines every node of the cluster that this process has joined, and all links between them.

    Args:
        asked: of the nodes that must be there.
        of_others: of the other nodes.
        address: of the cluster.
        within_s: time for the nodes' answers.
        watch: receives what is asked for, the number of answers, and that of questions.
    """
    listed: Any = ray.nodes  # Untyped in Ray.
    alive = [node for node in listed() if node["Alive"]]
    there = {NodeName(node["NodeName"]): node for node in alive}
    wrong = [
        f"{name}: there is no such node; there, run ray start --address={address} --node-name={name}"
        for name in sorted(asked.keys() - there.keys())
    ]
    if len(there) < len(alive):
        wrong.append("several nodes have one name, and one of them was examined; start each with --node-name")
    actors = {name: _at(there[name]) for name in sorted(there)}
    questions = {name: actor.examined.remote(asked.get(name, of_others)) for name, actor in actors.items()}
    hosts: dict[NodeName, HostFacts] = {}
    for answered, (name, facts) in enumerate(_answers(questions, within_s), 1):
        watch("nodes", answered, len(actors))
        if isinstance(facts, HostFacts):
            hosts[name] = facts
        else:
            wrong.append(f"{name}: {facts}")
    links: dict[Pair, Link] = {}
    done, ways_there = 0, len(hosts) * (len(hosts) - 1)
    for step in steps_of(sorted(hosts)):
        ways = {
            way: actors[way[1]].measured.remote(there[way[0]]["NodeManagerAddress"], hosts[way[0]].port)
            for way in step
        }
        for way, link in _answers(ways, _LINK_WITHIN_S):
            if isinstance(link, Link):
                links[way] = link
            else:
                wrong.append(f"{way[0]} to {way[1]}: {link}")
            done += 1
            watch("links", done, ways_there)
    return FleetFacts(dict(sorted(hosts.items())), dict(sorted(links.items())), tuple(wrong))


def _answers(questions: Mapping[_Key, Any], within_s: float) -> Iterator[tuple[_Key, Any]]:
    """Yields answers as they come, and for those that failed or are late the reason."""
    keys = {reference: key for key, reference in questions.items()}
    waiting, until_s = list(keys), time.monotonic() + within_s
    while waiting and (left_s := until_s - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, timeout=left_s)
        for reference in done:
            try:
                yield keys[reference], ray.get(reference)
            except RayError as error:
                yield keys[reference], f"{in_words(error)}; {_REMEDY}"
    for reference in waiting:
        yield keys[reference], f"no answer within {within_s:g} s; {_REMEDY}"


def _at(node: Mapping[str, Any]) -> Any:
    remote: Any = ray.remote
    options = {
        "name": f"{node['NodeName']}/doctor",
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        "runtime_env": {"env_vars": OF_ACTOR},
    }
    return remote(HostDoctor).options(**options).remote(node["NodeManagerAddress"])
