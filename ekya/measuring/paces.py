"""How fast retrainings really went at their shares, from a run's turns."""

from collections.abc import Iterator, Sequence

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.ids import JobId
from ekya.core.speed import Pace
from ekya.core.turns import TurnRecord
from ekya.core.units import us_to_seconds


def epoch_paces(turns: Sequence[TurnRecord]) -> Iterator[Pace]:
    """Every epoch from whose start to its end a job's share stayed the same, and no checkpoint was taken.

    The first epoch of a job is left out: what prepares it is in there.
    """
    shares: dict[JobId, int] = {}
    since_us: dict[JobId, int] = {}
    for turn in turns:
        for event in turn.events:
            if isinstance(event, ev.RetrainProgress) and event.job in shares:
                if event.job in since_us:
                    epoch_s = us_to_seconds(event.t_us - since_us[event.job])
                    yield Pace(event.job, shares[event.job], epoch_s)
                since_us[event.job] = event.t_us
        for command in turn.commands:
            match command:
                case cmd.StartRetraining():
                    shares[command.job] = command.share_milli
                case cmd.ResizeRetraining():
                    shares[command.job] = command.share_milli
                    since_us.pop(command.job, None)
                case cmd.ServeModel():
                    since_us.pop(command.job, None)
