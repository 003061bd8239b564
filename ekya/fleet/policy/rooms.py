"""Spare capacity of a server and its cost: the loss of its own streams, by the plans of its scheduler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ekya.core.plan import Plan
from ekya.core.speed import SpeedCurve
from ekya.core.view import WindowView
from ekya.fleet.policy.places import SiteName
from ekya.planning.schedulers.objective import Evaluation, evaluate_phases


@dataclass(frozen=True, slots=True)
class Room:
    """Capacity that a server can lend now, with what it lends already.

    Attributes:
        site: the server.
        step_milli: size of a unit.
        loss: accuracy that its streams lose together per second while 1, 2, ... units are lent, including the
            delay of their retrainings; non-decreasing.
        speed: of a training at a share there.
        late_us: expected delay of trainings there, from former ones.
    """

    site: SiteName
    step_milli: int
    loss: tuple[float, ...]
    speed: SpeedCurve
    late_us: int = 0

    def takes_s(self, gpu_s: float, share_milli: int) -> float:
        """Returns the time at a share of a training that takes ``gpu_s`` on a whole GPU of the borrower."""
        return gpu_s / self.speed.speed_at(share_milli)

    def loss_of_share(self, share_milli: int) -> float:
        """Returns the accuracy that its streams lose per second for a share, a multiple of the step."""
        units = min(share_milli // self.step_milli, len(self.loss))
        return self.loss[units - 1] if units else 0.0

    def beside_share(self, share_milli: int) -> "Room":
        """Returns the spare capacity that is left beside a lent share."""
        units, lost = share_milli // self.step_milli, self.loss_of_share(share_milli)
        return replace(self, loss=tuple(loss - lost for loss in self.loss[units:]))


def room(
    site: SiteName,
    view: WindowView,
    planner: Callable[[WindowView], Plan],
    shares_milli: Sequence[int],
    step_milli: int,
) -> Room:
    """Returns a server's spare capacity; its scheduler plans with the capacity that each share leaves.

    Args:
        site: the server.
        view: its present view.
        planner: its scheduler.
        shares_milli: candidates, ascending multiples of the step; shares that leave less than a quantum per
            stream are ignored.
        step_milli: size of a unit.
    """
    whole = evaluate_phases(view, planner(view).phases)
    loss: list[float] = []
    for share_milli in shares_milli:
        left_milli = view.capacity_milli - share_milli
        if left_milli < len(view.streams) * view.quantum_milli:
            break
        narrow = replace(view, capacity_milli=left_milli)
        less = evaluate_phases(narrow, planner(narrow).phases)
        lost = lost_a_second(whole, less, view) * len(view.streams)
        units = share_milli // step_milli
        # Units between two candidate shares cost as much as the larger one.
        loss += [max(lost, loss[-1] if loss else 0.0)] * (units - len(loss))
    return Room(site, step_milli, tuple(loss), view.training_speed)


def lost_a_second(whole: Evaluation, less: Evaluation, view: WindowView) -> float:
    """Returns the mean accuracy that streams lose per second of a loan, which may end before the window.

    The loss at the window's end is taken to last all the time. The rest is lost once, because retrainings
    end later, and is spread over the time until the last of them ends: a loan that lasts so long has cost all
    of it.

    Args:
        whole: evaluation of the plan with full capacity.
        less: evaluation of the plan with the reduced capacity.
        view: before anything is lent, with time left in its window.
    """
    left_us = view.window_end_us - view.now_us
    always = max(0.0, whole.at_end - less.at_end)
    once = max(0.0, whole.score - less.score - always)
    ends_us = max((at_us for _, at_us in less.completions_us), default=view.window_end_us)
    return always + once * left_us / max(ends_us - view.now_us, 1)
