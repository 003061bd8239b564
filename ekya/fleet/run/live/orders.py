"""Messages between the driver of a run and its sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ekya.fleet.run.calls import Handle

SITE = "site"
"""Name under which a site offers itself."""

Phase = Literal["opening", "ready", "running", "ended", "failed"]
"""Ready: it waits for the common start. Failed: there is no summary, and the reason is known."""


def server_name(run: str) -> str:
    """Returns the name under which a site offers its server in a run."""
    return f"server-{run}"


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a server's run.

    Attributes:
        phase: in one word.
        now_us: run time; 0 before the start.
        ends_us: run time of its end; None: it is not known.
        reason: why it failed; empty otherwise.
        by_user: the reason is an error that the user can correct.
    """

    phase: Phase
    now_us: int = 0
    ends_us: int | None = None
    reason: str = ""
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A run of several servers, as its driver tells it to each site.

    Attributes:
        run: identifies it.
        name: of the run and its folder.
        folder: of the run on this machine; None: one of the run's name, in the site's folder of runs.
        seed: of all random draws.
        changes: top-level keys of the fleet file to override.
        coordinator: None: the servers do not lend each other anything.
        resume_us: run time of the others, for a site whose process has died in this run: it goes on with what
            its folder holds. None: the run is new.
    """

    run: str
    name: str
    folder: str | None
    seed: int
    changes: Mapping[str, object]
    coordinator: Handle | None
    resume_us: int | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One server of the fleet, as others reach it.

    Attributes:
        server: its ``SiteRun``.
        machine: identifies its site's process; a site that was started again has another.
    """

    server: Handle
    machine: str
