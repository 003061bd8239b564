"""Recording of a trace: what every γ gives, for ``simulate``."""

import logging
from collections.abc import Sequence
from pathlib import Path

from ekya.api.fleets import Fleet
from ekya.api.runnable import require_recorded
from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.units import StreamId
from ekya.pipeline.costs import fitted_by_card, load_card
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.emulated.record_trace import Extent, TraceProgress, record_fleet

_LOG = logging.getLogger(__name__)


class LoggedProgress:
    """Logs a line for each training."""

    def expect(self, stream: StreamId, trainings: int) -> None:
        _LOG.info("%s: up to %d trainings", stream, trainings)

    def trained(self, what: str) -> None:
        _LOG.info("trained %s", what)


def profile(
    fleet: Fleet,
    out: str | Path,
    *,
    seed: int = 0,
    streams: Sequence[str] = (),
    families: int | None = None,
    every_start: bool = False,
    resume: bool = False,
    card: str | Path | None = None,
    progress: TraceProgress | None = None,
) -> Trace:
    """Runs every retraining configuration to its end, on what a run would see, and returns the trace.

    The trace is written after each stream; what was finished before Ctrl-C is a trace of fewer streams.

    Args:
        fleet: of recorded or rendered cameras.
        out: file of the trace.
        seed: of all random draws, as of a run.
        streams: only these; empty for all.
        families: number of families of configurations, the cheapest first; None for all.
        every_start: from every model that may serve by then, not only from the youngest of each family.
        resume: complete the trace in the file.
        card: cost card, or the name of a shipped one.
        progress: receives the progress; None logs it.

    Raises:
        UserError: a camera is live, its script changes what is seen, or the file is there already.
    """
    out = Path(out)
    if out.exists() and not resume:
        raise UserError(f"out {out}: the file is there already; resume it, or name another")
    before = read_trace(out) if out.exists() else None
    costs = load_card(None if card is None else Path(card))
    require_recorded(fleet.config, "by ekya profile")
    _require_no_tricks(fleet.config)
    config, _ = fitted_by_card(fleet.config, card=costs)
    extent = Extent(tuple(map(StreamId, streams)), families, every_start)
    return record_fleet(
        config,
        seed,
        extent,
        before,
        lambda so_far: write_trace(out, so_far),
        progress or LoggedProgress(),
        costs,
    )


def _require_no_tricks(fleet: "FleetConfig") -> None:
    """Refuses scripted events that a recording did not show; only an outage (``lost``) really happened."""
    for stream in fleet.streams:
        for event in stream.play.script:
            if event.event != "lost":
                raise UserError(
                    f"key 'streams.{stream.id}.play.script': a trace holds what a recording shows by itself; "
                    f"remove {event.event}"
                )
