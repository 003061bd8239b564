"""Vectorised steals of one thief from all victims, which make Algorithm 1 fast without changing its result.

The plain algorithm tries every thief against every victim, four million pairs with a thousand streams, and
nearly all in vain. A steal changes the values of at most two streams, and these changes add up. So one scan
over the losses of all victims finds the next victim that may pay; only that steal is evaluated, by the plain
algorithm's own rule. The plain algorithm would have tried and rejected the pairs that the scan skips: the
thief's gain and the victim's loss, on which they depend, are computed anew after every steal. The scan's
threshold is more generous than the rule by more than rounding errors, so that no steal is missed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.planning.schedulers.allocation import Job, JobKind
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.tables import ValueTables


class StealTable:
    """Shares in quanta, and the loss of each job's stream with one step less.

    Attributes:
        shares: quanta by job, in the order of the jobs.
    """

    def __init__(
        self,
        tables: ValueTables,
        jobs: Sequence[Job],
        *,
        shares: Sequence[int],
        floors: Sequence[int],
        step: int,
        max_min: bool,
    ) -> None:
        self.shares = list(shares)
        self._floors = list(floors)
        self._step = step
        self._largest = tables.levels - 1
        self._max_min = max_min
        self._serving, self._part = tables.serving.tolist(), tables.part.tolist()
        self._weights: list[float] = tables.weights.tolist()
        # More generous than the rule by more than the rounding error of sums of weighted values.
        self._pays = SAME / 2 - 1e-14 * max(self._weights, default=0.0)
        place = {stream: row for row, stream in enumerate(tables.streams)}
        job_at = {job: number for number, job in enumerate(jobs)}
        self._row = [place[job.stream] for job in jobs]
        self._rows = np.array(self._row, np.intp)
        self._inference = [job_at[Job(stream, JobKind.INFERENCE)] for stream in tables.streams]
        self._retraining = [job_at.get(Job(stream, JobKind.RETRAINING)) for stream in tables.streams]
        self._values = np.array([self._value(row) for row in range(len(place))])
        # By job, with one step less: its stream's value, and the weighted loss; minus infinity where the job
        # may not have less.
        self._robbed = np.full(len(jobs), -np.inf)
        self._losses = np.full(len(jobs), -np.inf)
        for row in range(len(place)):
            self._look_at(row)

    def run_thief(self, thief: int) -> None:
        """Lines 5 to 23 for one thief: steals from every victim in turn, as long as it pays."""
        first = 0
        while self.shares[thief] + self._step <= self._largest:
            victim = self._next_victim(thief, first)
            if victim is None:
                return
            # A victim found only by the generous threshold is skipped, as in the plain algorithm.
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
        if not self._max_min:
            return pays
        worst, others = self._values.min(), self._values.copy()
        others[row] = np.inf
        lowest = int(others.argmin())
        without = others[lowest]
        others[lowest] = np.inf
        untouched = np.where(self._rows[first:] == lowest, others.min(), without)
        after = np.minimum(np.minimum(untouched, gained), self._robbed[first:])
        pays &= after >= worst - 2 * SAME
        pays |= after > worst + SAME / 2
        return pays

    def _steal(self, thief: int, victim: int) -> bool:
        """Moves one step if the objective rises by it; returns whether it did."""
        self._move(thief, victim, self._step)
        rows = dict.fromkeys((self._row[thief], self._row[victim]))
        after = {row: self._value(row) for row in rows}
        if not self._rises(after):
            self._move(victim, thief, self._step)
            return False
        for row, value in after.items():
            self._values[row] = value
            self._look_at(row)
        return True

    def _move(self, thief: int, victim: int, step: int) -> None:
        self.shares[victim] -= step
        self.shares[thief] += step

    def _rises(self, after: Mapping[int, float]) -> bool:
        """Lines 15 to 20: returns whether these values of streams are better than the current ones."""
        gain = sum(self._weights[row] * value for row, value in after.items()) - sum(
            self._weights[row] * self._values[row] for row in after
        )
        if not self._max_min:
            return bool(gain > SAME)
        values = self._values.copy()
        worst_before = values.min()
        values[list(after)] = list(after.values())
        worst_after = values.min()
        return bool(worst_after > worst_before + SAME or (worst_after >= worst_before - SAME and gain > SAME))

    def _look_at(self, row: int) -> None:
        """Updates what the stream would lose with one step less for either job."""
        for job in (self._inference[row], self._retraining[row]):
            if job is not None and self.shares[job] - self._step >= self._floors[job]:
                value = self._value(row, job, -self._step)
                self._robbed[job] = value
                self._losses[job] = self._weights[row] * (value - self._values[row])
            elif job is not None:
                self._robbed[job] = self._losses[job] = -np.inf

    def _value(self, row: int, changed: int | None = None, by: int = 0) -> float:
        """Returns a stream's value, with the share of one of its jobs changed by some quanta."""
        inference, retraining = self._inference[row], self._retraining[row]
        analysing = self.shares[inference] + (by if changed == inference else 0)
        training = 0
        if retraining is not None:
            training = self.shares[retraining] + (by if changed == retraining else 0)
        value: float = self._serving[row][training] * self._part[row][analysing]
        return value
