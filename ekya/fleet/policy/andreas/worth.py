"""Ours on ANDREAS's problem: GPUs go where a second of them is worth most, and what goes well is left alone.

What the randomised greedy leaves behind, and what is done here instead:

- Its proxy looks one scheduling point ahead, and its order puts first who is latest. With more jobs than
  GPUs, those that cannot be in time any more, and long ones, then hold up all others. Here a second of work
  on a job is worth its weight where it is about to be late, over its length where GPUs are short: the rule
  for weighted tardiness on machines that are short ("apparent tardiness cost").
- It draws a configuration for each job by itself. Here one GPU of some kind for each job is the best
  matching of all jobs to all GPUs, so that TURING goes to those it slows least; GPUs that are left go where
  one more is worth most.
- It pays for a node as if each job had it alone. Here a node's base is shared, and nodes are emptied where
  their jobs find room on others.
- It does not know that moving costs. Here a job moves where that is worth more than the part of an epoch
  and the start that it loses.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ekya.fleet.policy.andreas.construct import WAITS
from ekya.fleet.policy.andreas.pack import emptied, packed
from ekya.fleet.policy.andreas.point import Floats, Ints, Point, point_of
from ekya.fleet.policy.andreas.settle import decision_of
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView


@dataclass(frozen=True, slots=True)
class Worth:
    """No chance, one pass.

    Attributes:
        ahead: how long before its last moment a job becomes urgent (urgency falls by e within it), in mean
            lengths of a job over the number of jobs: about what it takes until something happens again.
        most: where that counts no further: few jobs are pressed by nobody.
        least: added to it; both in mean lengths of a job.
        moving_s: what a start elsewhere is taken to last.
        lost_epochs: what an interruption is taken to lose. Both are 0 where moving costs nothing.
        settled_s: how long a decision is taken to hold.
        every_us: it is asked when something happens.
    """

    ahead: float = 1.0
    least: float = 0.02
    most: float = 0.06
    moving_s: float = 60.0
    lost_epochs: float = 0.5
    settled_s: float = 1800.0
    name: str = "worth"
    every_us: int | None = None

    def decide(self, view: FleetView) -> Decision:
        """Who runs on what; alike nodes are named so that jobs stay."""
        point = point_of(view)
        config = np.full(len(point.states), WAITS, dtype=np.intp)
        node = config.copy()
        if not point.states or not point.shelves:
            return decision_of(point, config, node)
        now_node, now = point.places_now
        lost_s = self.moving_s + self.lost_epochs * point.epoch_s
        worth = self.worth(point, now, lost_s)
        config = more_gpus(point, worth, one_gpu(point, worth))
        config, node = packed(point, worth, config, now, now_node)
        return decision_of(point, config, emptied(point, config, node, now, now_node, lost_s))

    def worth(self, point: Point, now: Ints, lost_s: Floats) -> Floats:
        """Of a second in each configuration, in the unit of costs; minus infinity where a job cannot run.

        Args:
            point: what is decided.
            now: configuration of each job, or ``WAITS``.
            lost_s: what a job loses that leaves a configuration.
        """
        work_s = np.where(point.gpus == 1, point.takes_s, np.inf).min(axis=1)
        some = np.isfinite(work_s)
        # Who was never profiled on one GPU is measured by the fastest it was profiled on.
        work_s = np.maximum(np.where(some, work_s, point.takes_s.min(axis=1)), 1e-6)
        work_s = np.where(np.isfinite(work_s), work_s, 1.0)
        speed = work_s[:, None] / point.takes_s
        energy = point.shared_cost_a_s
        with np.errstate(divide="ignore"):
            # Work has to be paid for in any case: as much as in the cheapest configuration.
            paid = np.where(speed > 0, energy / speed, np.inf).min(axis=1)
        paid = np.where(np.isfinite(paid), paid, 0.0)
        spare_s = np.maximum(0.0, point.due_in_s - work_s)
        soon_s = work_s.mean() * (self.least + min(self.most, self.ahead / len(work_s)))
        value = point.weight * np.exp(-spare_s / soon_s)
        if len(work_s) > point.all_gpus:
            value *= work_s.mean() / work_s
        worth = np.where(speed > 0, (paid + value)[:, None] * speed - energy, -np.inf)
        (stays,) = np.nonzero(now != WAITS)
        kept = now[stays]
        rate = (paid + value)[stays] * speed[stays, kept]
        holds_s = np.minimum(self.settled_s, np.maximum(point.takes_s[stays, kept], 1e-6))
        worth[stays, kept] += rate * lost_s[stays, kept] / holds_s
        return np.asarray(worth)


def one_gpu(point: Point, worth: Floats) -> Ints:
    """For as many jobs as there are GPUs one each, worth most together."""
    config = np.full(len(point.states), WAITS, dtype=np.intp)
    slots = np.repeat(point.single, [shelf.gpus * len(shelf.names) for shelf in point.shelves])
    values = worth[:, slots]
    possible = np.isfinite(values)
    if possible.any():
        # So bad that it is never chosen where anything else can be.
        never = values[possible].min() - 1.0 - np.ptp(values[possible]) * len(values)
        jobs, taken = linear_sum_assignment(np.where(possible, values, never), maximize=True)
        given = possible[jobs, taken]
        config[jobs[given]] = slots[taken[given]]
    return config


def more_gpus(point: Point, worth: Floats, config: Ints) -> Ints:
    """GPUs that are left go to jobs of their shelf, to whom one of them is worth most first."""
    config = config.copy()
    for number, shelf in enumerate(point.shelves):
        first = int(point.single[number])
        (rows,) = np.nonzero((config >= first) & (config < first + shelf.gpus))
        left = shelf.gpus * len(shelf.names) - len(rows)
        table = worth[rows, first : first + shelf.gpus]
        while left > 0 and len(rows):
            at = config[rows] - first
            more = np.arange(shelf.gpus)[None, :] - at[:, None]
            gain = table - table[np.arange(len(rows)), at][:, None]
            each = np.where((more > 0) & (more <= left), gain / np.maximum(more, 1), -np.inf)
            row, column = divmod(int(each.argmax()), shelf.gpus)
            if each[row, column] <= 0:
                break
            left -= int(more[row, column])
            config[rows[row]] = first + column
    return config
