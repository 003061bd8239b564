"""Serial scheduler: few retrainings at a time, on large shares, in order of gain per GPU-second.

A thief holds its shares to the window's end, so all retrainings run together on slivers and all complete
late. One after the other, each on all that retraining gets, the first completes much sooner and the last no
later (Smith's rule, where the speed is linear in the share); where a sliver of a GPU is faster than its
share, some run together. ``schedule_simulation`` decides this; ``serial_search`` finds the γ, the
streams and the order.

The plan has a phase per completion, and inference shares are chosen anew in each. a_MIN and the latency
limits are kept in every phase for as many streams as possible. Where λ of the golden detector are offered,
``exact`` says which streams it answers.
"""

from dataclasses import dataclass
from typing import ClassVar

from ekya.core.plan import Phase, Plan
from ekya.core.view import WindowView
from ekya.planning.schedulers.by_detector import offers_golden, split_by_detector
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.phases import plan_of_course
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.serial_search import best_course, effort_for
from ekya.planning.schedulers.window_arrays import window_arrays_of


@dataclass(frozen=True, slots=True)
class Serial:
    """Runs one retraining after the other, or few at a time."""

    name: ClassVar[str] = "serial"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """Returns a plan with a phase for each completion until the window's end."""
        if not view.streams:
            return Plan((Phase(()),), 0.0)
        arrays = window_arrays_of(self._searched(view))
        found = best_course(arrays, effort_for(len(view.streams)))
        return plan_of_course(view, arrays, found.courses)

    def _searched(self, view: WindowView) -> WindowView:
        """Returns the view to search in: with golden detectors where the best plan of one phase has them."""
        return split_by_detector(view, Exact().plan(view).phases[0]) if offers_golden(view) else view
