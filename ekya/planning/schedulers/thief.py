"""The thief scheduler: paper §4.2, Algorithms 1 and 2, to the letter.

Where the paper leaves something open, this implementation decides:

- Γ contains ∅, and a stream with nothing to retrain has no retraining job.
- The fair start rounds to δ; the quanta left over go to the first jobs in the order of their ids.
- Δ is lowered to δ where a fair share is below Δ (very many streams on few GPUs).
- Algorithm 2's pool of λ is empty where a_MIN cannot be reached at the share, and its maximum is then
  undefined. So an allocation that empties a pool is no improvement: an inference job never loses what a_MIN
  needs, and a fair start below that is lifted first. Where the capacity cannot keep a_MIN for all, it is
  kept for as many streams as possible.
- A thief stops at a whole GPU, since no job can use more.
- Accuracy averaged over streams counts each by its weight. For max-min (footnote 3) a steal counts where the
  worst stream gains, or where it stays and the mean gains: the minimum alone would stop most steals.
- Shares stand as the algorithm leaves them; the share of a job without a worthwhile retraining stays idle.
"""

from dataclasses import dataclass

from ekya.core.plan import Plan
from ekya.core.view import Objective, WindowView
from ekya.planning.schedulers.allocation import (
    Job,
    choices_by_stream,
    fair_shares_milli,
    jobs_of,
    kept_floors,
    largest_share_milli,
    lift_to_floors,
)
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.stealing import StealTable
from ekya.planning.schedulers.tables import value_tables


@dataclass(frozen=True, slots=True)
class Thief:
    """Lets every job steal from every other as long as the objective rises."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "thief"

    @property
    def needs(self) -> Needs:
        """Preparation that the scheduler needs."""
        return Needs(labels=True, inference_profile=True, micro_profile=True)

    def plan(self, view: WindowView) -> Plan:
        """Runs Algorithm 1; returns one phase, held until the window's end or the next planning."""
        choices = choices_by_stream(view)
        jobs = jobs_of(choices)
        largest = largest_share_milli(view.quantum_milli)
        fair = fair_shares_milli(view.capacity_milli, view.quantum_milli, len(jobs))
        step = view.steal_milli if fair and min(fair) >= view.steal_milli else view.quantum_milli
        start = {job: min(share, largest) for job, share in zip(jobs, fair, strict=True)}
        floors = kept_floors(view, sum(start.values()))
        shares = _stolen(view, lift_to_floors(start, floors, view.quantum_milli), floors, step)
        return one_phase_plan(view, choices, shares)


def _stolen(
    view: WindowView, start: dict[Job, int], floors: dict[Job, int], step_milli: int
) -> dict[Job, int]:
    """Lines 4 to 23: every job plays the thief once, in their order, against every other."""
    jobs, quantum = list(start), view.quantum_milli
    table = StealTable(
        value_tables(view),
        jobs,
        shares=[start[job] // quantum for job in jobs],
        floors=[floors.get(job, 0) // quantum for job in jobs],
        step=step_milli // quantum,
        max_min=view.objective is Objective.MAX_MIN,
    )
    for thief in range(len(jobs)):
        table.run_thief(thief)
    return {job: share * quantum for job, share in zip(jobs, table.shares, strict=True)}
