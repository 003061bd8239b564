"""The classes of a run's actors by name: only an actor's own process imports its class, and torch with it."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

_LAST = 19
"""The lowest priority that there is."""


@dataclass(frozen=True, slots=True)
class ActorKind:
    """A class of actors.

    Attributes:
        module: of the class.
        name: of the class.
        methods: that other processes call.
        patient: whether it loads at the lowest priority, for a process that nobody waits for.
        title: what Ray's dashboard and the list of processes show; empty for the name.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    patient: bool = False
    title: str = ""

    def actor_class(self) -> type[Any]:
        """Makes what Ray is given: a class that imports the real one when an actor is made of it."""

        def make(actor: Any, *arguments: object) -> None:
            loaded = _at_last(self._load) if self.patient else self._load()
            actor.works = loaded(*arguments)

        methods = {name: _forwarded(name) for name in self.methods}
        return type(self.title or self.name, (), {"__init__": make, **methods})

    def _load(self) -> type[Any]:
        found: type[Any] = getattr(import_module(self.module), self.name)
        return found


def _forwarded(name: str) -> Callable[..., Any]:
    def call(actor: Any, *arguments: object) -> Any:
        return getattr(actor.works, name)(*arguments)

    call.__name__ = name
    return call


def _at_last(load: Callable[[], type[Any]]) -> type[Any]:
    """Loads in a thread of the lowest priority: Linux keeps that by thread, and nobody may raise it again."""
    with ThreadPoolExecutor(1, initializer=_stand_back_last) as threads:
        return threads.submit(load).result()


def _stand_back_last() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST)


INFERENCE = ActorKind(
    "ekya.runtime.inference_actor",
    "InferenceActor",
    (
        "process",
        "base_weights",
        "warm_up",
        "load",
        "begin",
        "join",
        "leave",
        "configure",
        "swap",
        "take",
        "try_loan",
        "roll_back",
        "material",
        "poll",
        "end",
    ),
)
SPARE = replace(INFERENCE, patient=True, title="SpareInference")
"""One of no stream yet."""

RETRAINING = ActorKind(
    "ekya.runtime.retraining_actor",
    "RetrainingActor",
    (
        "process",
        "ready",
        "begin",
        "leave",
        "start",
        "adopt",
        "memory",
        "resize",
        "stop",
        "lend",
        "lend_first",
        "end_loan",
        "hand_over",
        "poll",
        "end",
    ),
)
PREPARATION = ActorKind(
    "ekya.runtime.preparation_actor",
    "PreparationActor",
    (
        "process",
        "ready",
        "begin_run",
        "begin",
        "resize",
        "know",
        "hand_in",
        "hand_in_failed",
        "end",
        "labels",
        "passed",
        "poll",
    ),
)
SCHEDULER = ActorKind("ekya.runtime.scheduler_actor", "SchedulerActor", ("ready", "plan"))
