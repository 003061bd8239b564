"""One run of ``chaos.py``: a fault is done to a service, it recovers, and its invariants are checked."""

import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil
from chaos_blows import Blow
from chaos_checks import Answers, frames_wrong, journal_wrong
from chaos_faults import Fault, Outcome
from chaos_service import Service, until
from chaos_surroundings import Surroundings
from chaos_terms import FleetTerms, Terms, terms_wrong

from ekya.system.processes import send_signal, still_runs

_READY_S = 150.0
_MORE = 3
"""Answers that a camera must give when all else is in order."""

_RULE_S, _RULE_DEATHS = 600.0, 3
"""A camera whose workers die so often is set aside: that is a rule, not a failure (``stream_faults``)."""

_LOOK_S = 0.5
_THERE_S = 15.0
"""Within which a kind of process should be there; a fleet whose cameras are set aside has not all."""


@dataclass(slots=True, eq=False)
class Chaos:
    """A service, what was asked of it, and what it did.

    Attributes:
        patience: factor of all time limits.
        wanted: cameras that should be there, and what was asked of them.
        around: what surrounds the service.
        cuts: deaths of the service that its supervisor did not count.
    """

    service: Service
    answers: Answers
    chance: random.Random
    patience: float
    wanted: dict[str, Terms]
    around: Surroundings = field(default_factory=Surroundings)
    began_s: float = 0.0
    cuts: int = 0
    deaths_s: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    _grown_s: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _owed: frozenset[str] = frozenset()
    _silent_s: float = 0.0
    _checked_s: float = 0.0
    _terms: FleetTerms = field(init=False)

    def __post_init__(self) -> None:
        fixed = frozenset(camera.id for camera in self.around.cameras)
        self._terms = FleetTerms(self.service, self.chance, self.wanted, fixed)

    def active(self) -> list[str]:
        """Returns the cameras that should serve."""
        return self._terms.active()

    def changed(self, kind: str, name: str) -> str:
        """Changes a term of a camera and returns it in words; empty where that makes no sense now."""
        return self._terms.changed(kind, name)

    def strike(self, fault: Fault) -> Outcome:
        """Changes terms, does a fault, waits for the recovery and checks the invariants."""
        service, failed = self.service, []
        at_s = time.monotonic() - self.began_s
        changed = (*self._terms.change(failed), *self._terms.retrainable(fault, failed))
        self.look(failed)
        # What a start goes on from may lie before the death; the steps since are then cut off.
        failed += self.journal_wrong()
        noted: list[str] = []
        before = self._before(fault, failed)
        fault = self._aimed(fault, before, noted)
        victims = [(kind, self.chance.choice(before[kind])) for kind in fault.victims if before[kind]]
        if {"inference", "retraining", "raylet", "gcs_server"} & {kind for kind, _ in victims}:
            self.deaths_s.append(time.monotonic())
        struck_s = time.monotonic()
        self._seen, self._silent_s = {}, 0.0
        self._grown_s = dict.fromkeys(self.answers.counts, struck_s)
        blow = Blow(
            fault,
            service,
            self.around,
            victims,
            self.chance,
            lambda for_s: self._wait(for_s, failed),
            self.stop,
            failed,
            noted,
        )
        blow.strike()
        self.cuts += blow.deaths
        if blow.deaths:
            self.answers.uncut.clear()  # frames that were cut off are numbered again
        gone = [one for _, one in blow.hit] if fault.what in ("kill", "hang") else []
        why = [""]

        def in_order() -> bool:
            why[0] = next(self._not_yet(failed, before, gone), "")
            return not why[0]

        waited_s = until(in_order, fault.limit_s * self.patience)
        recovered_s = None if waited_s is None else time.monotonic() - struck_s
        if recovered_s is None:
            failed.append(why[0])
            self._mend([one for _, one in victims])
        failed += self.journal_wrong()
        noted += self._terms.resume(failed)
        outcome = Outcome(
            str(fault),
            tuple((kind, one.pid) for kind, one in blow.hit),
            at_s,
            changed,
            recovered_s,
            self._silent_s,
            "; ".join(noted),
            tuple(dict.fromkeys(failed)),
        )
        self.outcomes.append(outcome)
        return outcome

    def _before(self, fault: Fault, failed: list[str]) -> Mapping[str, Sequence[psutil.Process]]:
        """Returns the service's processes by kind, after a wait for those that a fault is aimed at."""
        ends_s = time.monotonic() + _THERE_S
        while True:
            found = self.service.by_kind()
            if all(found[kind] for kind in fault.victims) or time.monotonic() > ends_s:
                return found
            self._wait(_LOOK_S, failed)

    def _aimed(self, fault: Fault, before: Mapping[str, Sequence[psutil.Process]], noted: list[str]) -> Fault:
        """Returns the fault, or the same of another kind of process where it would reach none."""
        if missing := [kind for kind in fault.victims if not before[kind]]:
            noted.append(f"no process of {' or '.join(missing)}")
        there = [kind for kind, found in before.items() if found]
        if not missing or len(missing) < len(fault.victims) or not there:
            return fault
        noted[-1] += f" for {fault}"
        return Fault(fault.what, (self.chance.choice(there),))

    def _wait(self, for_s: float, failed: list[str]) -> None:
        """Waits, and looks at the answers meanwhile."""
        ends_s = time.monotonic() + for_s
        while (left_s := ends_s - time.monotonic()) > 0:
            self.look(failed)
            time.sleep(min(left_s, _LOOK_S))

    def _not_yet(
        self,
        failed: list[str],
        before: Mapping[str, Sequence[psutil.Process]],
        gone: Sequence[psutil.Process],
    ) -> Iterator[str]:
        """Yields what is not in order yet."""
        self.look(failed)
        now_s = time.monotonic()
        told = self.service.status()
        states = {} if told is None else {one["id"]: one["state"] for one in told["cameras"]}
        serving = [name for name in self.active() if not self._is_set_aside(states.get(name))]
        self._silent_s = max([self._silent_s, *(now_s - self._grown_s.get(name, now_s) for name in serving)])
        if told is None:
            self._seen = {}
            yield f"serves: no answer ({self.service.restarts()} restarts)"
            return
        for difference in terms_wrong(told, self.wanted):
            self._seen = {}
            yield f"terms: {difference}"
        for name in serving:
            if states.get(name) != "serving":
                self._seen = {}
                yield f"serves: {name} is {states.get(name)}"
        if left := [one.pid for one in gone if still_runs(one)]:
            self._seen = {}
            yield f"processes: {left} still there"
        now = self.service.by_kind()
        for kind, were in before.items():
            wanted = len(serving) if kind == "decoder" else min(1, len(were))
            if serving and len(now[kind]) < wanted:
                self._seen = {}
                yield f"processes: {len(now[kind])} of {wanted} of kind {kind}"
        if not self._seen:
            self._seen = {name: self.answers.counts.get(name, 0) for name in serving} or {"": 0}
            self._owed = frozenset(self.answers.uncut)
        for name in serving:
            if self.answers.counts.get(name, 0) < self._seen.get(name, 0) + _MORE:
                yield f"answers: {name} gives none"
        if self.around.consumer is not None and (missing := self._owed - self.around.consumer.ids()):
            yield f"frames: {len(missing)} answers have not come to the broker's consumer"

    def _is_set_aside(self, state: str | None) -> bool:
        """Returns whether a camera is set aside by the rule."""
        recent = [at_s for at_s in self.deaths_s if at_s > time.monotonic() - _RULE_S]
        return state == "set aside" and len(recent) >= _RULE_DEATHS

    def look(self, failed: list[str]) -> None:
        """Reads the sink."""
        counts = dict(self.answers.counts)
        failed += [f"order: {said}" for said in self.answers.read(self.service.restarts() + self.cuts)]
        for name, count in self.answers.counts.items():
            if count > counts.get(name, 0):
                now_s = time.monotonic()
                self._silent_s = max(self._silent_s, now_s - self._grown_s.get(name, now_s))
                self._grown_s[name] = now_s

    def _mend(self, victims: Sequence[psutil.Process]) -> None:
        """Brings a service back that did not recover: by waking what was stopped, then by a start."""
        for victim in victims:
            send_signal(victim, signal.SIGCONT)
        told = self.service.status()
        if told is None or any(one["state"] not in ("serving", "paused") for one in told["cameras"]):
            self.service.end()
            self.cuts += 1
            self.service.start()
        self.ready()

    def journal_wrong(self) -> list[str]:
        """Returns what is wrong in the journal that was written since the last check."""
        since_s, self._checked_s = self._checked_s, time.time()
        return journal_wrong(self.service.runs, since_s)

    def ready(self) -> bool:
        """Waits until all cameras serve."""

        def serves() -> bool:
            self.look([])
            told = self.service.status()
            states = {} if told is None else {one["id"]: one["state"] for one in told["cameras"]}
            return bool(states) and all(states.get(name) == "serving" for name in self.active())

        return until(serves, _READY_S * self.patience) is not None

    def stop(self, failed: list[str]) -> None:
        """Stops the service in order and checks what is left."""
        service = self.service
        code = service.stop(60.0 * self.patience)
        if code != 0:
            failed.append(f"stop: exit code {code}")
        left = service.processes()
        if code is not None and left:
            failed.append("left: " + ", ".join(f"{one.pid} {one.name()}" for one in left))
        if code is None:
            service.end()
        if service.ray.exists():
            failed.append(f"left: {service.ray}")
        self.look(failed)
        if code == 0:
            unbroken = set(self.wanted) - self._terms.broken
            failed += frames_wrong(service.runs, self.answers.ids, unbroken)
