"""Plans windows in the scheduler's actor, and in the run's own process while that one starts."""

import logging
import os
import time
from collections import deque
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.runtime.actors.actor_messages import in_words, reporting_user_errors
from ekya.runtime.driver.actor_processes import end_process, make_actor
from ekya.system.host import freeze_loaded

_LOG = logging.getLogger(__name__)

_DURATIONS = 10_000
"""Newest durations of plans that are kept."""

_DEATHS_ALLOWED = 2
"""Consecutive deaths of the scheduler's process without a plan that are followed by a restart."""

_ANSWER_S = 30.0
"""A scheduler that takes longer hangs. Half of what a supervisor waits for a sign of life of the loop."""


class ActorPlanner:
    """Has each plan made by the scheduler's actor, and by this process while the actor starts.

    Equal views give equal plans in every process. So a window is still planned in time after the scheduler
    died, and before the streams' time for preparation is over.

    Args:
        name: of the scheduler.
        scheduler: the same scheduler in this process.
        server: name of the server, where several share a Ray namespace.
        strategy: Ray's, for its actor; None for the node of this process.
    """

    def __init__(self, name: str, scheduler: Scheduler, server: str = "", strategy: Any = None) -> None:
        self._name, self._strategy = name, strategy
        self._scheduler = scheduler
        self._actor_name = f"{server}/scheduler" if server else "scheduler"
        self._deaths = 0
        self._restarts = 0
        self.planning_ms: deque[float] = deque(maxlen=_DURATIONS)
        self._actor: Any = None
        self._starting: Any = None
        # Reference to the actor's pid.
        self._process: Any = None
        self._start(self._actor_name)

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan for a view."""
        if not self._is_starting() and self._deaths <= _DEATHS_ALLOWED:
            try:
                plan, took_ms = ray.get(self._actor.plan.remote(self._name, view), timeout=_ANSWER_S)
                self._deaths = 0
                self.planning_ms.append(took_ms)
                answer: Plan = plan
                return answer
            except RayActorError as error:
                self._start_again(in_words(error))
            except GetTimeoutError:
                end_process(self._actor, self._process)
                self._start_again(f"it gave no plan for {_ANSWER_S:g} s")
        began_s = time.perf_counter()
        plan = self._scheduler.plan(view)
        self.planning_ms.append((time.perf_counter() - began_s) * 1000)
        return plan

    def change_scheduler(self, name: str) -> None:
        """Has another scheduler make the plans from now on."""
        if name != self._name:
            self._name, self._scheduler = name, make_scheduler(name)

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def _is_starting(self) -> bool:
        if self._starting is not None and ray.wait([self._starting], timeout=0)[0]:
            self._starting = None
        return self._starting is not None

    def _start_again(self, reason: str) -> None:
        self._deaths += 1
        self._restarts += 1
        if self._deaths > _DEATHS_ALLOWED:
            _LOG.warning("the scheduler died again (%s); the run's own process plans from now on", reason)
            return
        _LOG.warning("the scheduler died (%s) and is started again", reason)
        self._start(f"{self._actor_name} (restart {self._restarts})")

    def _start(self, name: str) -> None:
        actor_class = reporting_user_errors(SchedulerActor, name)
        self._actor = make_actor(
            actor_class, name, {}, 0.0, self._name, self._scheduler, strategy=self._strategy
        )
        self._process = self._starting = self._actor.confirm_ready.remote()


class SchedulerActor:
    """Holds the scheduler of the run.

    Args:
        name: of the scheduler.
        scheduler: itself; it may be known by no name, being an object of the user's.
    """

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._schedulers = {name: scheduler}
        freeze_loaded()

    def confirm_ready(self) -> int:
        """Returns its pid when it can plan."""
        return os.getpid()

    def plan(self, scheduler: str, view: WindowView) -> tuple[Plan, float]:
        """Returns the plan of a scheduler and the milliseconds that it took.

        Each call names the scheduler: of two calls, the later one may be carried out first.
        """
        if scheduler not in self._schedulers:
            self._schedulers[scheduler] = make_scheduler(scheduler)
        began = time.perf_counter()
        plan = self._schedulers[scheduler].plan(view)
        return plan, (time.perf_counter() - began) * 1000
