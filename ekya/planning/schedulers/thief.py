"""The thief scheduler: paper §4.2, Algorithms 1 and 2.

Where the paper leaves something open, this implementation decides:

- Γ contains ∅, and a stream with nothing to retrain has no retraining job.
- The fair start rounds to δ; the quanta left over go to the first jobs in the order of their ids.
- Δ is lowered to δ where a fair share is below Δ (very many streams on few GPUs).
- Algorithm 2's pool of λ is empty where a_MIN cannot be reached at the share, and its maximum is then
  undefined. So an allocation that empties a pool is no improvement: an inference job never loses what a_MIN
  needs, and a fair start below that is lifted first. Where the capacity cannot keep a_MIN for all, it is
  kept for as many streams as possible.
- A thief stops at a whole GPU, since no job can use more.
- Accuracy averaged over streams counts each by its weight.
- Shares stand as the algorithm leaves them; the share of a job without a worthwhile retraining stays idle.

The printed algorithm tries every thief against every victim, four million pairs with a thousand streams, and
nearly all in vain. A steal changes the values of at most two streams, and these changes add up. So one scan
over the losses of all victims finds the next victim that may pay; only that steal is evaluated, by the
printed rule. The pairs that the scan skips would have been rejected: the thief's gain and the victim's loss,
on which they depend, are computed anew after every steal. The scan's threshold is more generous than the
rule by more than rounding errors, so that no steal is missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ekya.core.plan import Plan
from ekya.core.shares import Job, Work
from ekya.core.view import WindowView
from ekya.planning.schedulers.allocation import choices_by_stream, equal_shares, kept_floors, lift_to_floors
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.tables import ValueTables, value_tables


@dataclass(frozen=True, slots=True)
class Thief:
    """Lets every job steal from every other as long as the objective rises."""

    name: ClassVar[str] = "thief"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True)

    def plan(self, view: WindowView) -> Plan:
        """Runs Algorithm 1; returns one phase, held until the window's end or the next planning."""
        choices = choices_by_stream(view)
        start = equal_shares(
            view,
            [
                Job(stream, work)
                for stream, choice in choices.items()
                for work in (Work.INFERENCE, Work.RETRAINING)
                if work is Work.INFERENCE or choice.has_retraining
            ],
        )
        step = view.steal_milli if start and min(start.values()) >= view.steal_milli else view.quantum_milli
        tables = value_tables(view)
        floors = kept_floors(view, sum(start.values()), tables.floors)
        lifted = lift_to_floors(start, floors, view.quantum_milli)
        stealing = _Stealing(view, tables, lifted, floors, step)
        for thief in range(len(start)):
            stealing.run_thief(thief)
        return one_phase_plan(view, choices, stealing.shares_milli())


class _Stealing:
    """Shares in quanta, and the loss of each job's stream with one step less."""

    def __init__(
        self,
        view: WindowView,
        tables: ValueTables,
        start: Mapping[Job, int],
        floors: Mapping[Job, int],
        step_milli: int,
    ) -> None:
        quantum = view.quantum_milli
        self._jobs, self._quantum = list(start), quantum
        self._shares = [share // quantum for share in start.values()]
        self._floors = [floors.get(job, 0) // quantum for job in start]
        self._step = step_milli // quantum
        self._largest = tables.levels - 1
        self._serving, self._part = tables.serving.tolist(), tables.part.tolist()
        self._golden = tables.golden.tolist()
        self._weights: list[float] = tables.weights.tolist()
        # More generous than the rule by more than the rounding error of sums of weighted values.
        self._pays = SAME / 2 - 1e-14 * max(self._weights, default=0.0)
        place = {stream.stream: row for row, stream in enumerate(view.streams)}
        job_at = {job: number for number, job in enumerate(self._jobs)}
        self._row = [place[job.stream] for job in self._jobs]
        self._inference = [job_at[Job(stream, Work.INFERENCE)] for stream in place]
        self._retraining = [job_at.get(Job(stream, Work.RETRAINING)) for stream in place]
        self._values = np.array([self._value(row) for row in range(len(place))])
        # By job, with one step less; minus infinity where the job may not have less.
        self._losses = np.full(len(self._jobs), -np.inf)
        for row in range(len(place)):
            self._update_losses(row)

    def shares_milli(self) -> dict[Job, int]:
        """Returns the shares as they are now."""
        return {job: share * self._quantum for job, share in zip(self._jobs, self._shares, strict=True)}

    def run_thief(self, thief: int) -> None:
        """Lines 5 to 23 for one thief: steals from every victim in turn, as long as it pays."""
        first = 0
        while self._shares[thief] + self._step <= self._largest:
            victim = self._next_victim(thief, first)
            if victim is None:
                return
            # A victim found only by the generous threshold is skipped, as in the printed algorithm.
            first = victim if self._steal(thief, victim) else victim + 1

    def _next_victim(self, thief: int, first: int) -> int | None:
        """Returns the first victim, from ``first`` on, from which stealing may pay."""
        row = self._row[thief]
        may = self._may_pay(row, self._value(row, thief, self._step), first)
        for own in (self._inference[row], self._retraining[row]):
            if own is not None and own >= first:
                may[own - first] = own != thief and self._losses[own] > -np.inf
        place = int(may.argmax()) if len(may) else 0
        return first + place if len(may) and may[place] else None

    def _may_pay(self, row: int, gained: float, first: int) -> NDArray[np.bool_]:
        """Returns the victims of other streams that may pay, if the thief's stream comes to ``gained``."""
        gain = self._weights[row] * (gained - self._values[row]) + self._losses[first:]
        pays: NDArray[np.bool_] = gain > self._pays
        return pays

    def _steal(self, thief: int, victim: int) -> bool:
        """Moves one step if the objective rises by it; returns whether it did."""
        self._shares[victim] -= self._step
        self._shares[thief] += self._step
        after = {row: self._value(row) for row in (self._row[thief], self._row[victim])}
        if not self._rises(after):
            self._shares[victim] += self._step
            self._shares[thief] -= self._step
            return False
        for row, value in after.items():
            self._values[row] = value
            self._update_losses(row)
        return True

    def _rises(self, after: Mapping[int, float]) -> bool:
        """Lines 15 to 20: returns whether these values of streams are better than the current ones."""
        gain = sum(self._weights[row] * value for row, value in after.items()) - sum(
            self._weights[row] * self._values[row] for row in after
        )
        return bool(gain > SAME)

    def _update_losses(self, row: int) -> None:
        """Updates what the stream would lose with one step less for either job."""
        for job in (self._inference[row], self._retraining[row]):
            if job is not None and self._shares[job] - self._step >= self._floors[job]:
                value = self._value(row, job, -self._step)
                self._losses[job] = self._weights[row] * (value - self._values[row])
            elif job is not None:
                self._losses[job] = -np.inf

    def _value(self, row: int, changed: int | None = None, by: int = 0) -> float:
        """Returns a stream's value, with the share of one of its jobs changed by some quanta."""
        inference, retraining = self._inference[row], self._retraining[row]
        analysing = self._shares[inference] + (by if changed == inference else 0)
        training = 0
        if retraining is not None:
            training = self._shares[retraining] + (by if changed == retraining else 0)
        by_model = self._serving[row][training] * self._part[row][analysing]
        value: float = max(by_model, self._golden[row][analysing])
        return value
