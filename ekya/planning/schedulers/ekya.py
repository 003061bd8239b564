"""Default scheduler: the best plan of its planners, never below the thief.

Plans are compared by the objective over all their phases. The candidates are ``serial``, which is nearly
always the best, ``exact``, and the remainder of the plan in progress. ``exact`` is the best plan of one
phase and so never below the paper's ``thief``, which need not plan as well. With the remainder as a
candidate each plan is worth at least the rest of the one before it. So, if estimates hold, a window is never
worth less in the end than any of its forecasts, nor than the thief's plan at that time.
"""

from dataclasses import dataclass
from typing import ClassVar

from ekya.core.plan import Phase, Plan
from ekya.core.view import WindowView
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.plan_remainder import best_remainder, plan_of_remainder
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.serial import Serial


@dataclass(frozen=True, slots=True)
class Ekya:
    """Chooses the best plan of several planners."""

    name: ClassVar[str] = "ekya"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan with the highest objective; on a tie, the one in progress."""
        if not view.streams:
            return Plan((Phase(()),), 0.0)
        planners = (Serial(), Exact())
        fresh = max((planner.plan(view) for planner in planners), key=lambda plan: plan.expected_accuracy)
        remainder = best_remainder(view)
        if remainder is None or remainder.score < fresh.expected_accuracy:
            return fresh
        return plan_of_remainder(view, remainder)
