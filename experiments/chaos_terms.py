"""Terms of a service's cameras, which ``chaos.py`` changes over the API between faults."""

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from chaos_faults import SMALL_S, Fault
from chaos_service import Service, UnansweredError

from ekya.core.errors import UserError


@dataclass(slots=True)
class Terms:
    """What was asked of a camera."""

    paused: bool = False
    frozen: bool = False
    weight: float = 1.0


def terms_wrong(told: Mapping[str, object], wanted: Mapping[str, Terms]) -> Iterable[str]:
    """Yields differences between what a service says of its cameras and what was asked of it."""
    cameras = {camera["id"]: camera for camera in told["cameras"]}  # type: ignore[attr-defined]
    if set(cameras) != set(wanted):
        yield f"cameras {sorted(cameras)}, asked for were {sorted(wanted)}"
    for name, terms in wanted.items():
        if (camera := cameras.get(name)) is None:
            continue
        if (camera["state"] == "paused") != terms.paused and camera["state"] not in ("set aside", "ended"):
            yield f"{name} is {camera['state']}, asked for was {'a pause' if terms.paused else 'none'}"
        if camera["frozen"] != terms.frozen:
            yield f"{name} is {'' if camera['frozen'] else 'not '}frozen"
        if camera["weight"] != terms.weight:
            yield f"{name} has weight {camera['weight']}, asked for was {terms.weight}"


@dataclass(slots=True, eq=False)
class FleetTerms:
    """What was asked of a service's cameras.

    Attributes:
        service: the service.
        chance: for what is changed.
        cameras: by name; those that should be there.
        fixed: cameras whose terms are left alone.
        broken: cameras that were paused or added, so that their frames have gaps.
    """

    service: Service
    chance: random.Random
    cameras: dict[str, Terms]
    fixed: frozenset[str] = frozenset()
    broken: set[str] = field(default_factory=set)

    def active(self) -> list[str]:
        """Returns the cameras that should serve."""
        return sorted(name for name, terms in self.cameras.items() if not terms.paused)

    def change(self, failed: list[str]) -> Iterator[str]:
        """Changes up to two terms over the API; yields them in words."""
        for _ in range(self.chance.randint(0, 2)):
            names = sorted(set(self.cameras) - self.fixed)
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

    def retrainable(self, fault: Fault, failed: list[str]) -> Iterator[str]:
        """Unfreezes a camera where a fault waits for a retraining and no camera could have one."""
        names = self.active()
        if fault.what == "term" and names and all(self.cameras[name].frozen for name in names):
            try:
                yield self.changed("freeze", self.chance.choice(names))
            except (UserError, UnansweredError) as error:
                failed.append(f"serves: no camera can be unfrozen ({error})")

    def changed(self, kind: str, name: str) -> str:
        """Changes one term and returns it in words; empty where that makes no sense now."""
        service, terms = self.service, self.cameras[name]
        if kind == "pause":
            if not terms.paused and len(self.active()) < 2:
                return ""
            service.change("POST", f"cameras/{name}/{'resume' if terms.paused else 'pause'}")
            terms.paused = not terms.paused
            self.broken.add(name)
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
            if set(self.cameras) <= {name, *self.fixed} or self.active() == [name]:
                return ""
            service.change("DELETE", f"cameras/{name}")
            del self.cameras[name]
            return f"remove {name}"
        free = [one for one in service.cameras if one not in self.cameras]
        if not free or len(self.cameras) > 2:
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
        self.cameras[name] = Terms()
        self.broken.add(name)
        return f"add {name}"

    def resume(self, failed: list[str]) -> Iterator[str]:
        """Resumes cameras that are set aside, as an operator would who does not wait for the service to."""
        told = self.service.status()
        aside = [] if told is None else [one["id"] for one in told["cameras"] if one["state"] == "set aside"]
        if not aside:
            return
        yield f"set aside by the rule: {', '.join(aside)}"
        try:
            for name in aside:
                self.service.change("POST", f"cameras/{name}/resume")
                self.cameras[name].paused = False
        except (UserError, UnansweredError) as error:
            failed.append(f"serves: a camera set aside cannot be resumed ({error})")
