"""The scheduler of this system: the best plan that any of its planners finds, and never below the thief.

Plans are compared by the objective, over all of their phases. Beside ``serial``, which is best nearly always,
there are ``exact`` and what is left of the plan that is being carried out. ``exact`` is the best plan of one
phase, and so never below the paper's ``thief``, which need not plan too. What is left is why a window, if
estimates hold, is never worth less in the end than it was ever forecast to be: each plan is at least the rest
of the one before it, and so at least what the thief would have planned then.
"""

from dataclasses import dataclass

from ekya.core.plan import Phase, Plan
from ekya.core.view import WindowView
from ekya.scheduling.carried_on import best_remainder, plan_of_remainder
from ekya.scheduling.exact import Exact
from ekya.scheduling.protocol import Needs
from ekya.scheduling.serial import Serial


@dataclass(frozen=True, slots=True)
class Ekya:
    """The best of the planners."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "ekya"

    @property
    def needs(self) -> Needs:
        """The preparation it wants."""
        return Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """The plan with the highest objective; of equals the one that is being carried out."""
        if not view.streams:
            return Plan((Phase(()),), 0.0)
        planners = (Serial(), Exact())
        fresh = max((planner.plan(view) for planner in planners), key=lambda plan: plan.expected_accuracy)
        remainder = best_remainder(view)
        if remainder is None or remainder.score < fresh.expected_accuracy:
            return fresh
        return plan_of_remainder(view, remainder)
