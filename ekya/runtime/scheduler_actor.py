"""Actor `scheduler`: turns a snapshot into a plan. It imports neither torch nor OpenCV."""

import time

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.runtime.gc_freeze import freeze_loaded
from ekya.scheduling.registry import make_scheduler


class SchedulerActor:
    """Holds one scheduler for the whole run."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = make_scheduler(scheduler)
        freeze_loaded()

    def ready(self) -> None:
        """Returns when it can plan."""

    def plan(self, view: WindowView) -> tuple[Plan, float]:
        """Returns the plan and the milliseconds that it took."""
        began = time.perf_counter()
        plan = self._scheduler.plan(view)
        return plan, (time.perf_counter() - began) * 1000
