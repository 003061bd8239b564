"""Chaos: a real ``ekya serve`` under random faults, after each of which its invariants are checked.

    python experiments/chaos.py --minutes 10 --seed 1
    python experiments/chaos.py --faults kill:raylet,hang:decoder --json -

The service watches rendered cameras in short windows. Faults are drawn without replacement until all were
drawn: processes of each kind are killed, alone and in pairs, stopped for seconds, and left hanging; the
service is stopped and started; its power is cut, with the end of its files. Before each, terms are changed
over the API. A seed gives the same faults in the same order, but not at the same moments of the service.

Printed is a line a fault, with the seconds until all was in order again and the longest time for which a
camera gave no answer meanwhile. Exit code 1: an invariant failed; the service's folder is kept then.
"""

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from chaos_checks import Answers, Terms, journal_wrong, shared_memory, terms_wrong
from chaos_faults import INVARIANTS, SMALL_S, Fault, Outcome, deck, line, summary, table
from chaos_service import Service, UnansweredError, tear, until
from recipe import Json, Seed, run

from ekya.cli.output import Output, output
from ekya.core.errors import UserError
from ekya.system.processes import send_signal, still_runs

_READY_S = 150.0
_MORE = 3
"""Answers that a camera must give when all else is in order."""

_STOPPED_S = (2.0, 9.0)
_RULE_S, _RULE_DEATHS = 600.0, 3
"""A camera whose workers die so often is set aside: that is a rule, not a failure (``ekya.core.faults``)."""

_GROWTH, _GROWTH_BYTES = 1.3, 200e6


@dataclass(slots=True, eq=False)
class Chaos:
    """A service, what was asked of it, and what it did.

    Attributes:
        patience: factor of all time limits.
    """

    service: Service
    answers: Answers
    chance: random.Random
    patience: float
    wanted: dict[str, Terms]
    began_s: float = 0.0
    cuts: int = 0
    deaths_s: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    _grown_s: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def active(self) -> list[str]:
        """Returns the cameras that should serve."""
        return sorted(name for name, terms in self.wanted.items() if not terms.paused)

    def strike(self, fault: Fault) -> Outcome:
        """Changes terms, does a fault, waits for the recovery and checks the invariants."""
        service = self.service
        at_s, failed, noted = time.monotonic() - self.began_s, [], []
        changed = tuple(self._change(failed))
        self.look(failed)
        before = service.by_kind()
        victims = [self.chance.choice(before[kind]) for kind in fault.kinds if before[kind]]
        if {"inference", "retraining", "raylet", "gcs_server"} & set(fault.kinds):
            self.deaths_s.append(time.monotonic())
        struck_s = time.monotonic()
        self._seen = {}
        self._grown_s = dict.fromkeys(self.answers.counts, struck_s)
        self._do(fault, victims, failed, noted)
        gone = victims if fault.what in ("kill", "hang") else []
        silent_s, why = [0.0], [""]

        def in_order() -> bool:
            why[0] = next(self._not_yet(failed, before, gone, silent_s), "")
            return not why[0]

        waited_s = until(in_order, fault.limit_s * self.patience)
        recovered_s = None if waited_s is None else time.monotonic() - struck_s
        if recovered_s is None:
            failed.append(why[0])
            self._mend(victims)
        failed += journal_wrong(service.runs)
        noted += self._readmit(failed)
        outcome = Outcome(
            str(fault),
            at_s,
            changed,
            recovered_s,
            silent_s[0],
            "; ".join(noted),
            tuple(dict.fromkeys(failed)),
        )
        self.outcomes.append(outcome)
        return outcome

    def _do(
        self, fault: Fault, victims: Sequence[psutil.Process], failed: list[str], noted: list[str]
    ) -> None:
        if fault.what == "restart":
            self.stop(failed)
            self.service.start()
        elif fault.what == "power":
            self.service.cut_power()
            self.cuts += 1
            noted.append("lost: " + tear(self.service, self.chance))
            self.service.start()
        elif fault.what == "kill":
            for victim in victims:
                send_signal(victim, signal.SIGKILL)
        else:
            for victim in victims:
                send_signal(victim, signal.SIGSTOP)
            if fault.what == "stop":
                for_s = self.chance.uniform(*_STOPPED_S)
                noted.append(f"for {for_s:.1f} s")
                time.sleep(for_s)
                for victim in victims:
                    send_signal(victim, signal.SIGCONT)

    def _not_yet(
        self,
        failed: list[str],
        before: Mapping[str, Sequence[psutil.Process]],
        gone: Sequence[psutil.Process],
        silent_s: list[float],
    ) -> Iterator[str]:
        """Yields what is not in order yet."""
        self.look(failed)
        now_s = time.monotonic()
        told = self.service.status()
        states = {} if told is None else {one["id"]: one["state"] for one in told["cameras"]}
        serving = [name for name in self.active() if not self._is_set_aside(states.get(name))]
        silent_s[0] = max([silent_s[0], *(now_s - self._grown_s.get(name, now_s) for name in serving)])
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
        for name in serving:
            if self.answers.counts.get(name, 0) < self._seen.get(name, 0) + _MORE:
                yield f"answers: {name} gives none"

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
                self._grown_s[name] = time.monotonic()

    def _change(self, failed: list[str]) -> Iterator[str]:
        """Changes up to two terms over the API; yields them in words."""
        for _ in range(self.chance.randint(0, 2)):
            names = sorted(self.wanted)
            name = self.chance.choice(names)
            kind = self.chance.choice(["pause", "freeze", "weight", "fleet", "labels", "remove", "add"])
            try:
                said = self.changed(kind, name)
            except UserError as error:
                said = f"{kind} refused ({error})"
                if kind != "labels":
                    failed.append(f"terms: {said}")
            except UnansweredError as error:
                said = f"{kind} unanswered"
                failed.append(f"serves: {error}")
            if said:
                yield said

    def changed(self, kind: str, name: str) -> str:
        """Changes one term and returns it in words; empty where that makes no sense now."""
        service, terms = self.service, self.wanted[name]
        if kind == "pause":
            if not terms.paused and len(self.active()) < 2:
                return ""
            service.change("POST", f"cameras/{name}/{'resume' if terms.paused else 'pause'}")
            terms.paused = not terms.paused
            return f"{'pause' if terms.paused else 'resume'} {name}"
        if kind == "freeze":
            service.change("POST", f"cameras/{name}/{'unfreeze' if terms.frozen else 'freeze'}")
            terms.frozen = not terms.frozen
            return f"{'freeze' if terms.frozen else 'unfreeze'} {name}"
        if kind == "weight":
            weight = self.chance.choice([0.5, 1.0, 2.0])
            service.change("PATCH", f"cameras/{name}", {"weight": weight})
            terms.weight = weight
            return f"weight {name} {weight:g}"
        if kind == "fleet":
            changes = [
                {"min_accuracy": 0.3},
                {"min_accuracy": 0.4},
                {"scheduler": "ekya"},
                {"scheduler": "thief"},
            ]
            change = self.chance.choice([*changes, {"labels_per_window": 40}, {"labels_per_window": 96}])
            service.change("PATCH", "fleet", change)
            return " ".join(f"{key} {value}" for key, value in change.items())
        if kind == "labels":
            if terms.paused or terms.frozen:
                return ""
            service.change("POST", f"cameras/{name}/labels")
            return f"label {name}"
        if kind == "remove":
            if len(self.wanted) < 2 or self.active() == [name]:
                return ""
            service.change("DELETE", f"cameras/{name}")
            del self.wanted[name]
            return f"remove {name}"
        free = [one for one in service.cameras if one not in self.wanted]
        if not free or len(self.wanted) > 2:
            return ""
        return self._add(self.chance.choice(free))

    def _add(self, name: str) -> str:
        """Adds a camera, which may still be ending."""
        ends_s = time.monotonic() + SMALL_S
        while True:
            try:
                self.service.change("POST", "cameras", self.service.cameras[name])
                break
            except UserError as error:
                if "still ending" not in str(error) or time.monotonic() > ends_s:
                    raise
                time.sleep(1.0)
        self.wanted[name] = Terms()
        return f"add {name}"

    def _readmit(self, failed: list[str]) -> Iterator[str]:
        """Resumes cameras that are set aside, as an operator would who does not wait for the service to."""
        told = self.service.status()
        aside = [] if told is None else [one["id"] for one in told["cameras"] if one["state"] == "set aside"]
        if not aside:
            return
        yield f"set aside by the rule: {', '.join(aside)}"
        try:
            for name in aside:
                self.service.change("POST", f"cameras/{name}/resume")
                self.wanted[name].paused = False
        except (UserError, UnansweredError) as error:
            failed.append(f"serves: a camera set aside cannot be resumed ({error})")

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


def played(chaos: Chaos, faults: Iterator[Fault], seconds: float, say: Callable[[str], None]) -> list[str]:
    """Runs a service under faults, and returns what failed outside of a single one."""
    failed: list[str] = []
    shared = shared_memory()
    service = chaos.service
    service.start()
    if not chaos.ready():
        service.end()
        return ["serves: the service does not start"]
    chaos.began_s = time.monotonic()
    time.sleep(2 * service.window_s)
    first_bytes = most_bytes(service)
    while time.monotonic() - chaos.began_s < seconds and (fault := next(faults, None)) is not None:
        say(line(len(chaos.outcomes) + 1, chaos.strike(fault)))
    time.sleep(2 * service.window_s)
    last_bytes = most_bytes(service)
    say(f"memory: {first_bytes / 1e6:.0f} MB after the start, {last_bytes / 1e6:.0f} MB at the end")
    if last_bytes > _GROWTH * first_bytes + _GROWTH_BYTES:
        failed.append(f"memory: {first_bytes / 1e6:.0f} MB became {last_bytes / 1e6:.0f} MB")
    chaos.stop(failed)
    failed += journal_wrong(service.runs)
    if more := shared_memory() - shared:
        failed.append(f"left: /dev/shm/{', '.join(sorted(more))}")
    return failed


def most_bytes(service: Service) -> int:
    """Returns the most memory that the service's processes need within some seconds."""
    most = 0
    for _ in range(4):
        most = max(most, service.pss_bytes())
        time.sleep(service.window_s / 4)
    return most


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are done.")] = 10.0,
    seed: Seed = 0,
    faults: Annotated[
        str | None, typer.Option(metavar="LIST", help="Only these faults, in this order: kill:raylet,power.")
    ] = None,
    cameras: Annotated[int, typer.Option(min=2, max=3, help="Rendered cameras at the start.")] = 2,
    window: Annotated[float, typer.Option(min=5.0, help="Length of a retraining window, seconds.")] = 12.0,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Factor of all time limits, for a busy machine.")
    ] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder also if nothing failed.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of the service, new; default: a temporary one."),
    ] = None,
    json_to: Json = None,
) -> None:
    """Serve rendered cameras under random faults, and check the service's invariants after each."""
    chance = random.Random(seed)  # noqa: S311
    chosen = deck(chance) if faults is None else iter([Fault.of(one) for one in faults.split(",")])
    place = Path(tempfile.mkdtemp(prefix="chaos-")) if folder is None else folder
    with output(json_to) as channel:
        service = Service(place.resolve(), window)
        service.prepare(cameras)
        chaos = Chaos(
            service,
            Answers(service.answers),
            chance,
            patience,
            {name: Terms() for name in list(service.cameras)[:cameras]},
        )
        channel.say(f"Seed {seed}; folder {place}")
        try:
            failed = played(chaos, chosen, 60.0 * minutes, lambda said: _say(channel, said))
        finally:
            service.end()
        report(channel, chaos, seed, failed, place, keep)


def report(channel: Output, chaos: Chaos, seed: int, failed: Sequence[str], place: Path, keep: bool) -> None:
    """Prints and writes what was found; ends with exit code 1 if an invariant failed."""
    wrong = [*(f"{one.fault}: {said}" for one in chaos.outcomes for said in one.failed), *failed]
    rows = summary(chaos.outcomes)
    channel.report(
        {
            "seed": seed,
            "folder": str(place),
            "invariants": INVARIANTS,
            "answers": dict(chaos.answers.counts),
            "restarts": chaos.service.restarts(),
            "faults": [asdict(one) for one in chaos.outcomes],
            "summary": rows,
            "failed": wrong,
        }
    )
    channel.console.print(table(rows))
    for said in wrong:
        channel.say(f"FAILED {said}")
    if wrong:
        channel.say(f"Seed {seed}; the journal is in {chaos.service.runs.path}")
        raise typer.Exit(1)
    channel.say("All invariants held.")
    if not keep:
        shutil.rmtree(place, ignore_errors=True)


def _say(channel: Output, said: str) -> None:
    channel.say(said)
    channel.console.file.flush()


if __name__ == "__main__":
    run(main, "python experiments/chaos.py --minutes 3 --seed 7 --json -")
