"""Our policy for ANDREAS's problem: gives GPUs to the jobs with the highest worth per second.

- A second of work on a job that is about to be late is worth its weight, divided by its length where GPUs are
  scarce: the "apparent tardiness cost" rule for weighted tardiness.
- An optimal matching of jobs to GPUs gives each job one GPU; the remaining ones go where one is worth most.
- A node's base cost is shared by its jobs, and a node is emptied where they fit on others.
- A job moves where that is worth more than the restart and the part of an epoch that it loses.

docs/fleet/andreas.md compares this with the weaknesses of the randomised greedy.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ekya.fleet.policy.andreas.point import WAITS, Floats, Ints, Point, point_of
from ekya.fleet.policy.andreas.settle import decision_of, emptied, packed
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView


@dataclass(frozen=True, slots=True)
class Worth:
    """Deterministic policy in one pass.

    Attributes:
        ahead: slack over which a job's urgency falls by a factor of e, in mean lengths of a job over the
            number of jobs: about the time until the next event.
        most: upper bound of that slack, because a few jobs hardly compete.
        least: added to that slack; both in mean lengths of a job.
        moving_s: assumed time of a restart elsewhere.
        lost_epochs: assumed loss by an interruption. Both are 0 where moving costs nothing.
        settled_s: assumed time for which a decision holds.
    """

    ahead: float = 1.0
    least: float = 0.02
    most: float = 0.06
    moving_s: float = 60.0
    lost_epochs: float = 0.5
    settled_s: float = 1800.0
    name: str = "worth"
    on_events: bool = True
    every_us: None = None

    def decide(self, view: FleetView) -> Decision:
        """Assigns GPUs to jobs; interchangeable nodes are named so that jobs stay."""
        point = point_of(view)
        if not point.states or not point.shelves:
            return decision_of(point, point.waiting, point.waiting)
        # No job leaves a configuration in which it cannot run.
        lost_s = self.moving_s + self.lost_epochs * np.where(np.isfinite(point.epoch_s), point.epoch_s, 0.0)
        worth = self.worth(point, lost_s)
        config, node = packed(point, worth, more_gpus(point, worth, one_gpu(point, worth)))
        return decision_of(point, config, emptied(point, config, node, lost_s))

    def worth(self, point: Point, lost_s: Floats) -> Floats:
        """Returns the worth of a second in each configuration, in cost units; -inf where a job cannot run.

        ``lost_s`` has the seconds that a job loses by leaving each configuration.
        """
        work_s = np.where(point.gpus == 1, point.takes_s, np.inf).min(axis=1)
        some = np.isfinite(work_s)
        # A job that was never profiled on one GPU counts with its fastest configuration.
        work_s = np.maximum(np.where(some, work_s, point.takes_s.min(axis=1)), 1e-6)
        work_s = np.where(np.isfinite(work_s), work_s, 1.0)
        speed = work_s[:, None] / point.takes_s
        energy = point.shared_cost_a_s
        with np.errstate(divide="ignore", invalid="ignore"):
            # The cost of the work in the cheapest configuration has to be paid in any case.
            paid = np.where(speed > 0, energy / speed, np.inf).min(axis=1)
        paid = np.where(np.isfinite(paid), paid, 0.0)
        spare_s = np.maximum(0.0, point.due_in_s - work_s)
        soon_s = work_s.mean() * (self.least + min(self.most, self.ahead / len(work_s)))
        value = point.weight * np.exp(-spare_s / soon_s)
        if len(work_s) > point.all_gpus:
            value *= work_s.mean() / work_s
        worth = np.where(speed > 0, (paid + value)[:, None] * speed - energy, -np.inf)
        now, _ = point.places_now
        (stays,) = np.nonzero(now != WAITS)
        kept = now[stays]
        rate = (paid + value)[stays] * speed[stays, kept]
        holds_s = np.minimum(self.settled_s, np.maximum(point.takes_s[stays, kept], 1e-6))
        worth[stays, kept] += rate * lost_s[stays, kept] / holds_s
        return np.asarray(worth)


def one_gpu(point: Point, worth: Floats) -> Ints:
    """Returns the matching of jobs to single GPUs with the highest total worth."""
    config = point.waiting
    slots = np.repeat(point.single, [shelf.gpus * len(shelf.names) for shelf in point.shelves])
    values = worth[:, slots]
    possible = np.isfinite(values)
    if possible.any():
        # Low enough that an impossible pair is chosen only where nothing else is possible.
        never = values[possible].min() - 1.0 - np.ptp(values[possible]) * len(values)
        jobs, taken = linear_sum_assignment(np.where(possible, values, never), maximize=True)
        given = possible[jobs, taken]
        config[jobs[given]] = slots[taken[given]]
    return config


def more_gpus(point: Point, worth: Floats, config: Ints) -> Ints:
    """Gives the remaining GPUs of each shelf to its jobs, where a GPU is worth most first."""
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
