"""Options of one run that are not part of its fleet."""

from dataclasses import dataclass
from pathlib import Path

from ekya.planning.schedulers.registry import DEFAULT_SCHEDULER


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one run that are not part of its fleet.

    Attributes:
        scheduler: its name.
        seed: seed of all random draws.
        runs: folder in which the run's folder is created.
        name: of the run; None takes the fleet's.
        shares: name of a share backend, or ``auto``.
        dashboard: whether to start Ray's dashboard.
        resume: folder of the run to resume, or None.
        overload: whether to run where not even the coarsest inference of all cameras fits.
        card: cost card for durations on virtual time; None for the shipped one.
        endless: whether it is a service: it runs until stopped, whatever ``windows`` says, goes on with what
            its folder holds, keeps predictions by the hour, and writes no report.
    """

    scheduler: str = DEFAULT_SCHEDULER
    seed: int = 0
    runs: Path = Path("runs")
    name: str | None = None
    shares: str = "auto"
    dashboard: bool = True
    resume: Path | None = None
    overload: bool = False
    card: Path | None = None
    endless: bool = False
