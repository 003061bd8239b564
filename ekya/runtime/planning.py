"""Plans from the scheduler's process, and from the run's own while that one is started again."""

import logging
import time
from typing import Any

import ray
from ray.exceptions import RayActorError

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.runtime.complaining import in_words
from ekya.runtime.fleet_actors import FleetActors
from ekya.scheduling.protocol import Scheduler

_LOG = logging.getLogger(__name__)

_DEATHS_ALLOWED = 2
"""Of the scheduler's process without a plan in between; after another it is not started again."""


class ActorPlanner:
    """Asks the scheduler's actor for each plan.

    Equal views give equal plans in every process. So a window is planned in time although the scheduler has
    just died, and its streams are prepared before their time for it is over.

    Args:
        actors: the scheduler's is one of them.
        scheduler: the same scheduler, in this process.
    """

    def __init__(self, actors: FleetActors, scheduler: Scheduler) -> None:
        self._actors = actors
        self._scheduler = scheduler
        self._starting: Any = None
        self._deaths = 0
        self.planning_ms: list[float] = []

    def plan(self, view: WindowView) -> Plan:
        """The plan for a view."""
        if not self._is_starting() and self._deaths <= _DEATHS_ALLOWED:
            try:
                plan, took_ms = ray.get(self._actors.scheduler.plan.remote(view))
                self._deaths = 0
                self.planning_ms.append(took_ms)
                answer: Plan = plan
                return answer
            except RayActorError as error:
                self._start_again(in_words(error))
        began_s = time.perf_counter()
        plan = self._scheduler.plan(view)
        self.planning_ms.append((time.perf_counter() - began_s) * 1000)
        return plan

    def _is_starting(self) -> bool:
        """Whether the actor was made again and is not ready yet."""
        if self._starting is not None:
            done, _ = ray.wait([self._starting], timeout=0)
            if done:
                self._starting = None
        return self._starting is not None

    def _start_again(self, reason: str) -> None:
        self._deaths += 1
        if self._deaths > _DEATHS_ALLOWED:
            _LOG.warning("the scheduler died again (%s); the run's own process plans from now on", reason)
            return
        _LOG.warning("the scheduler died (%s) and is started again", reason)
        self._actors.scheduler = self._actors.make_scheduler()
        self._starting = self._actors.scheduler.ready.remote()
