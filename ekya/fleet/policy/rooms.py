"""What it costs a server to lend a share: what its own streams lose by it, by its own scheduler's word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ekya.core.plan import Plan
from ekya.core.speed import SpeedCurve
from ekya.core.view import WindowView
from ekya.fleet.policy.names import SiteName


@dataclass(frozen=True, slots=True)
class Room:
    """What a server can lend now.

    Attributes:
        site: whose it is.
        step_milli: size of a unit.
        loss: accuracy that its streams lose together while 1, 2, ... units are lent; non-decreasing.
        speed: of a training at a share there.
        late_us: how much later than foreseen trainings end there, by those that have ended.
    """

    site: SiteName
    step_milli: int
    loss: tuple[float, ...]
    speed: SpeedCurve
    late_us: int = 0

    def lost(self, share_milli: int) -> float:
        """Accuracy that its streams lose together while so much is lent, a multiple of the step."""
        units = share_milli // self.step_milli
        return self.loss[units - 1] if units else 0.0

    def beside(self, share_milli: int) -> "Room":
        """What it can still lend beside a share that somebody has."""
        units, lost = share_milli // self.step_milli, self.lost(share_milli)
        return replace(self, loss=tuple(loss - lost for loss in self.loss[units:]))


def room(
    site: SiteName,
    view: WindowView,
    planner: Callable[[WindowView], Plan],
    shares_milli: Sequence[int],
    step_milli: int,
) -> Room:
    """Asks a server's scheduler what it would do with less.

    Args:
        site: the server.
        view: its present one.
        planner: its scheduler.
        shares_milli: that are thought of, rising, multiples of the step; what leaves no capacity is left out.
        step_milli: size of a unit.
    """
    whole = planner(view).expected_accuracy
    loss: list[float] = []
    for share_milli in shares_milli:
        left_milli = view.capacity_milli - share_milli
        if left_milli < len(view.streams) * view.quantum_milli:
            break
        less = planner(replace(view, capacity_milli=left_milli)).expected_accuracy
        lost = (whole - less) * len(view.streams)
        units = share_milli // step_milli
        # Between two shares that were asked about, what the larger one costs.
        loss += [max(lost, loss[-1] if loss else 0.0)] * (units - len(loss))
    return Room(site, step_milli, tuple(loss), view.training_speed)
