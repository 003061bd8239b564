"""What it costs a server to lend a share: what its own streams lose by it, by its own scheduler's word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ekya.core.plan import Plan
from ekya.core.speed import SpeedCurve
from ekya.core.view import WindowView
from ekya.fleet.policy.names import SiteName
from ekya.scheduling.objective import Evaluation, evaluate


@dataclass(frozen=True, slots=True)
class Room:
    """What a server can lend now.

    Attributes:
        site: whose it is.
        step_milli: size of a unit.
        loss: accuracy that its streams lose together in each second while 1, 2, ... units are lent, the delay
            of their retrainings counted in; non-decreasing.
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
    whole = evaluate(view, planner(view).phases)
    loss: list[float] = []
    for share_milli in shares_milli:
        left_milli = view.capacity_milli - share_milli
        if left_milli < len(view.streams) * view.quantum_milli:
            break
        narrow = replace(view, capacity_milli=left_milli)
        less = evaluate(narrow, planner(narrow).phases)
        lost = lost_a_second(whole, less, view) * len(view.streams)
        units = share_milli // step_milli
        # Between two shares that were asked about, what the larger one costs.
        loss += [max(lost, loss[-1] if loss else 0.0)] * (units - len(loss))
    return Room(site, step_milli, tuple(loss), view.training_speed)


def lost_a_second(whole: Evaluation, less: Evaluation, view: WindowView) -> float:
    """Mean accuracy that streams lose in each second of a loan that may be over before the window is.

    What they still lack when the window ends they lack all the time. The rest is lost once, because
    retrainings end later; a loan that is over when they have ended has cost all of it, however early that is.

    Args:
        whole: what they have by a plan with everything.
        less: by a plan with what is left.
        view: before anything is lent, with time left in its window.
    """
    left_us = view.window_end_us - view.now_us
    always = max(0.0, whole.at_end - less.at_end)
    once = max(0.0, whole.mean - less.mean - always)
    ends_us = max((at_us for _, at_us in less.completions_us), default=view.window_end_us)
    return always + once * left_us / max(ends_us - view.now_us, 1)
