"""Does each fault of ``chaos.py`` to a service, or to what surrounds it."""

import json
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from chaos_faults import Fault
from chaos_service import Service, UnansweredError, tear
from chaos_surroundings import Surroundings

from ekya.core.errors import UserError
from ekya.results.storage.segmented_journal import list_segments
from ekya.system.processes import send_signal, still_runs

_STOPPED_S = (2.0, 9.0)
_FULL_S = (15.0, 30.0)
"""More than a window, so a snapshot of the journal cannot be written, too."""

_LITTLE_MEMORY_S = 10.0
_CLOCK_S, _CLOCK_OFF_S = 20.0, 3600
_TAKEN_S = (10.0, 20.0)
_BROKER_S = (5.0, 20.0)
_CAMERA_S = (7.0, 15.0)
"""Longer than the five seconds after which a camera that sends nothing counts as lost."""

_MOMENT_S, _MOMENT_TRIES = 120.0, 3
_LOOK_S = 0.02
_MOMENTS = {"retraining": "StartRetraining", "swap": "ServeModel"}
"""Commands in the journal, which are on disk before they are carried out."""


@dataclass(slots=True, eq=False)
class Blow:
    """One fault on its way.

    Attributes:
        fault: what is done.
        service, around: what it is done to.
        victims: processes, each with its kind.
        chance: for moments and lengths.
        wait: waits for seconds, and looks at the answers meanwhile.
        stop: stops the service in order, and notes what fails.
        failed: invariants, to which is added.
        noted: facts, to which is added.
        deaths: of the service that its supervisor does not count.
        hit: victims that it reached.
    """

    fault: Fault
    service: Service
    around: Surroundings
    victims: Sequence[tuple[str, psutil.Process]]
    chance: random.Random
    wait: Callable[[float], None]
    stop: Callable[[list[str]], None]
    failed: list[str]
    noted: list[str] = field(default_factory=list)
    deaths: int = 0
    hit: list[tuple[str, psutil.Process]] = field(default_factory=list)

    def strike(self) -> None:
        """Does it."""
        DONE[self.fault.what](self)
        if self.fault.victims and not self.hit:
            self.failed.append("done: it reached no process")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the victims, and notes those that got it."""
        self.hit = [(kind, victim) for kind, victim in self.victims if send_signal(victim, number)]

    def some_s(self, bounds: tuple[float, float]) -> float:
        """Returns a time between bounds, and notes it."""
        for_s = self.chance.uniform(*bounds)
        self.noted.append(f"for {for_s:.1f} s")
        return for_s


def _kill(blow: Blow) -> None:
    blow.signal(signal.SIGKILL)


def _hang(blow: Blow) -> None:
    blow.signal(signal.SIGSTOP)


def _stop(blow: Blow) -> None:
    blow.signal(signal.SIGSTOP)
    time.sleep(blow.some_s(_STOPPED_S))
    for _, victim in blow.hit:
        send_signal(victim, signal.SIGCONT)


def _memory(blow: Blow) -> None:
    """Lets processes map no more memory for a time: what asks for some gets an error."""
    for kind, victim in blow.victims:
        with suppress(psutil.Error):
            _, hard = victim.rlimit(psutil.RLIMIT_AS)
            victim.rlimit(psutil.RLIMIT_AS, (victim.memory_info().vms, hard))
            blow.hit.append((kind, victim))
    blow.wait(_LITTLE_MEMORY_S)
    # What they have started meanwhile has inherited the limit.
    for process in blow.service.processes():
        with suppress(psutil.Error):
            soft, hard = process.rlimit(psutil.RLIMIT_AS)
            if soft != hard:
                process.rlimit(psutil.RLIMIT_AS, (hard, hard))
    died = [one for _, one in blow.hit if not still_runs(one)]
    blow.noted.append(f"{len(died)} of {len(blow.hit)} died")


def _restart(blow: Blow) -> None:
    blow.stop(blow.failed)
    blow.service.start()


def _power(blow: Blow) -> None:
    blow.service.cut_power()
    blow.deaths += 1
    blow.noted.append("lost: " + tear(blow.service, blow.chance))
    blow.service.start()


def _full(blow: Blow) -> None:
    disk = blow.around.disk
    assert disk is not None
    before = blow.service.restarts()
    disk.fill()
    blow.wait(blow.some_s(_FULL_S))
    disk.free()
    if restarted := blow.service.restarts() - before:
        blow.noted.append(f"{restarted} restarts meanwhile")


def _clock(blow: Blow) -> None:
    clock = blow.around.clock
    assert clock is not None
    clock.set_off(_CLOCK_OFF_S)
    blow.wait(_CLOCK_S)
    clock.set_off(0)


def _port(blow: Blow) -> None:
    """Starts the service again while another process listens on its port."""
    blow.stop(blow.failed)
    said = blow.service.said.stat().st_size
    with socket.create_server(("127.0.0.1", blow.service.port)):
        blow.service.start()
        blow.wait(blow.some_s(_TAKEN_S))
        # It gets as far as its port while the machine is busy, too.
        ends_s = time.monotonic() + _MOMENT_S
        while (told := _said_of_port(blow.service, said)) == 0 and time.monotonic() < ends_s:
            blow.wait(0.5)
    process = blow.service.process
    if process is not None and process.poll() is not None:
        blow.failed.append(f"port: the service ended with exit code {process.poll()}")
        blow.service.start()
    if told == 0:
        blow.failed.append("port: the service does not say that its port is taken")


def _said_of_port(service: Service, since: int) -> int:
    with service.said.open("rb") as file:
        file.seek(since)
        return file.read().count(f":{service.port} cannot be listened on".encode())


def _broker(blow: Blow) -> None:
    """Ends the broker, or stops it with its connections open, for a time."""
    broker = blow.around.broker
    assert broker is not None
    if hangs := blow.chance.random() < 0.5:
        broker.pause(True)
    else:
        broker.stop()
    blow.noted.append("hangs" if hangs else "is away")
    blow.wait(blow.some_s(_BROKER_S))
    if hangs:
        broker.pause(False)
    else:
        broker.start()


def _term(blow: Blow) -> None:
    """Stops the service in the middle of a retraining, or of a swap of weights, and starts it again."""
    command = _MOMENTS[blow.fault.kinds[0]]
    began_s = time.monotonic()
    # Labels need not lead to a retraining: they are asked for again until some do.
    if not any(_comes(blow, command) for _ in range(_MOMENT_TRIES)):
        blow.failed.append(f"done: no {command} came within {time.monotonic() - began_s:.0f} s")
    elif command == "StartRetraining":
        time.sleep(blow.chance.uniform(0.2, 2.0))
    blow.stop(blow.failed)
    blow.service.start()


def _comes(blow: Blow, command: str) -> bool:
    """Asks for labels of all cameras; returns whether a command comes then, as soon as it does."""
    told = blow.service.status() or {"cameras": []}
    for camera in told["cameras"]:
        if camera["state"] == "serving" and not camera["frozen"]:
            with suppress(UnansweredError, UserError):
                blow.service.change("POST", f"cameras/{camera['id']}/labels")
    return command in _commands(blow.service, time.monotonic() + _MOMENT_S)


def _commands(service: Service, until_s: float) -> Iterator[str]:
    """Yields kinds of commands as the journal gets them, at once."""
    numbers = list_segments(service.runs)
    path = service.runs.journal_segment(numbers[-1])
    with path.open("rb") as file:
        file.seek(0, 2)
        rest = b""
        while time.monotonic() < until_s:
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                with suppress(ValueError, TypeError, KeyError):
                    yield from (one["kind"] for one in json.loads(line).get("commands", ()))
            time.sleep(_LOOK_S)


def _camera(blow: Blow) -> None:
    camera = blow.chance.choice(blow.around.cameras)
    what = blow.fault.kinds[0]
    for_s = blow.some_s(_CAMERA_S)
    blow.noted.append(camera.id)
    if what == "flood":
        camera.flood(True)
        blow.wait(for_s)
        camera.flood(False)
    elif what == "stall":
        camera.stall(True)
        blow.wait(for_s)
        camera.stall(False)
    else:
        camera.kill()
        blow.wait(for_s)
        camera.start(camera.shows if what == "cut" else "plain" if camera.shows == what else what)


DONE: Mapping[str, Callable[[Blow], None]] = {
    "kill": _kill,
    "hang": _hang,
    "stop": _stop,
    "memory": _memory,
    "restart": _restart,
    "power": _power,
    "full": _full,
    "clock": _clock,
    "port": _port,
    "broker": _broker,
    "term": _term,
    "camera": _camera,
}
