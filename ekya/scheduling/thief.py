"""The thief scheduler: paper §4.2, Algorithms 1 and 2, to the letter.

Where the paper leaves something open, this is the reading:

- Γ contains ∅, and a stream with nothing to retrain has no retraining job.
- The fair start rounds to δ; the quanta left over go to the first jobs in the order of their ids.
- Δ is lowered to δ where a fair share is below Δ (very many streams on few GPUs).
- Algorithm 2's pool of λ is empty where a_MIN cannot be reached at the share, and its maximum is then
  undefined. So an allocation that empties a pool is no improvement: nobody steals an inference job
  below what a_MIN needs, and a fair start that is below it is lifted first. Where the capacity cannot
  keep a_MIN for all, it is kept for as many streams as possible.
- A thief stops at a whole GPU, since no job can use more.
- Accuracy averaged over streams counts each by its weight. For max-min (footnote 3) a steal counts where
  the worst stream gains, or where it stays and the mean gains: the minimum alone would stop most steals.
- Shares stand as the algorithm leaves them; one that found no retraining worth it stays idle.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.core.ids import StreamId
from ekya.core.plan import Plan
from ekya.core.view import Objective, WindowView
from ekya.scheduling.allocation import (
    Job,
    JobKind,
    choices_by_stream,
    fair_shares_milli,
    jobs_of,
    kept_floors,
    largest_share_milli,
    lift_to_floors,
)
from ekya.scheduling.pick import SAME, StreamChoices
from ekya.scheduling.protocol import Needs
from ekya.scheduling.reasons import one_phase_plan


@dataclass(frozen=True, slots=True)
class Thief:
    """Every job steals from every other as long as the objective rises."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "thief"

    @property
    def needs(self) -> Needs:
        """The preparation it wants."""
        return Needs(labels=True, inference_profile=True, micro_profile=True)

    def plan(self, view: WindowView) -> Plan:
        """Algorithm 1; one phase, held until the window's end or the next planning."""
        choices = choices_by_stream(view)
        jobs = jobs_of(choices)
        largest = largest_share_milli(view.quantum_milli)
        fair = fair_shares_milli(view.capacity_milli, view.quantum_milli, len(jobs))
        step = view.steal_milli if fair and min(fair) >= view.steal_milli else view.quantum_milli
        start = {job: min(share, largest) for job, share in zip(jobs, fair, strict=True)}
        floors = kept_floors(view, sum(start.values()))
        allocation = _Allocation(view, choices, lift_to_floors(start, floors, view.quantum_milli))
        for thief in jobs:
            for victim in jobs:
                if thief == victim:
                    continue
                while (
                    allocation.shares[victim] - step >= floors.get(victim, 0)
                    and allocation.shares[thief] + step <= largest
                    and allocation.steal(thief, victim, step)
                ):
                    pass
        return one_phase_plan(view, choices, allocation.shares)


class _Allocation:
    """best_alloc with the value of each stream, so that a steal looks at two streams only."""

    def __init__(
        self, view: WindowView, choices: Mapping[StreamId, StreamChoices], shares: Mapping[Job, int]
    ) -> None:
        self.shares = dict(shares)
        self._max_min = view.objective is Objective.MAX_MIN
        self._choices = choices
        self._values = {stream: self._value(stream, self.shares) for stream in choices}

    def steal(self, thief: Job, victim: Job, step_milli: int) -> bool:
        """Moves one step if the objective rises by it, and says whether it did."""
        before = dict.fromkeys((thief.stream, victim.stream))
        old_thief, old_victim = self.shares[thief], self.shares[victim]
        self.shares[victim] = old_victim - step_milli
        self.shares[thief] = old_thief + step_milli
        after = {stream: self._value(stream, self.shares) for stream in before}
        if self._gains(after):
            self._values.update(after)
            return True
        self.shares[thief], self.shares[victim] = old_thief, old_victim
        return False

    def _gains(self, after: Mapping[StreamId, float]) -> bool:
        gain = sum(self._weighted(stream, value) for stream, value in after.items()) - sum(
            self._weighted(stream, self._values[stream]) for stream in after
        )
        if not self._max_min:
            return gain > SAME
        worst_before = min(self._values.values())
        worst_after = min({**self._values, **after}.values())
        return worst_after > worst_before + SAME or (worst_after >= worst_before - SAME and gain > SAME)

    def _weighted(self, stream: StreamId, value: float) -> float:
        return self._choices[stream].stream.weight * value

    def _value(self, stream: StreamId, shares: Mapping[Job, int]) -> float:
        return self._choices[stream].value(
            shares.get(Job(stream, JobKind.RETRAINING), 0), shares[Job(stream, JobKind.INFERENCE)]
        )
