"""Registry of actor classes by name, so that only an actor's own process imports its class and torch."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

_LAST = 19
"""Niceness of the lowest priority."""


@dataclass(frozen=True, slots=True)
class ActorKind:
    """Class of an actor, imported lazily.

    Attributes:
        module: of the class.
        name: of the class.
        methods: those that other processes call.
        patient: whether it loads at the lowest priority, for a process that nothing waits for.
        title: name in Ray's dashboard and in the process list; empty for ``name``.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    patient: bool = False
    title: str = ""

    def actor_class(self) -> type[Any]:
        """Returns a class for Ray that imports the real class when an actor is made from it."""

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
    """Loads in a separate thread of the lowest priority.

    On Linux priority belongs to a thread, and an unprivileged process cannot raise it again.
    """
    with ThreadPoolExecutor(1, initializer=_lower_priority_fully) as threads:
        return threads.submit(load).result()


def _lower_priority_fully() -> None:
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
"""Spare inference process that holds no stream yet."""

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
