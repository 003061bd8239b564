"""``ekya profile``: trains every γ of a fleet to its end and records a trace for simulation."""

import logging
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from ekya.cli.output import Output, bars_of, require_writable
from ekya.cli.run import FleetArguments, noticing_ctrl_c, require_recorded
from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.units import StreamId
from ekya.pipeline.costs import fitted_by_card, load_card
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.emulated.record_trace import Extent, record_fleet
from ekya.streams.ingest.script import Lost

_LOG = logging.getLogger(__name__)


def record_trace(
    arguments: FleetArguments,
    seed: int,
    extent: Extent,
    to: Path,
    resume: bool,
    output: Output,
    card: Path | None = None,
) -> None:
    """Records a trace and saves it after each stream; durations come from ``card`` or the shipped cost card.

    Raises:
        UserError: the fleet file is invalid, the output file exists (without ``resume``), cannot be resumed
            or cannot be written; raised before any work is done.
        KeyboardInterrupt: after Ctrl-C; the finished streams are in the file.
    """
    require_writable("--out", to)
    if to.exists() and not resume:
        raise UserError(f"--out {to}: the file is there already; go on with it by --resume, or name another")
    before = read_trace(to) if resume and to.exists() else None
    fleet, cost_card = arguments.read(), load_card(card)
    require_recorded(fleet, "by ekya profile")
    _require_no_tricks(fleet)
    fleet, _ = fitted_by_card(fleet, card=cost_card)
    with noticing_ctrl_c(), bars_of(output.console) as bars:
        shown = _Shown(bars, output.console.is_terminal)
        trace = record_fleet(
            fleet, seed, extent, before, lambda so_far: write_trace(to, so_far), shown, cost_card
        )
    output.report(contents(trace))
    output.console.print(_in_words(trace, to), highlight=False, soft_wrap=True)


def _require_no_tricks(fleet: FleetConfig) -> None:
    """Refuses scripted events that a recording did not show; only an outage (``lost``) really happened."""
    for stream in fleet.streams:
        for event in stream.play.script:
            if not isinstance(event, Lost):
                raise UserError(
                    f"key 'streams.{stream.id}.play.script': a trace holds what a recording shows by itself; "
                    f"remove {event.event}"
                )


def contents(trace: Trace) -> dict[str, object]:
    """Returns counts and GPU-seconds of a trace."""
    windows = [window for stream in trace.streams for window in stream.windows]
    trainings = [training for window in windows for training in window.trainings]
    return {
        "streams": [stream.stream for stream in trace.streams],
        "windows": trace.windows,
        "retrain_configs": len(trace.retrain_configs),
        "trainings": len(trainings),
        "epochs": sum(len(training.epochs) for training in trainings),
        "training_gpu_s": round(sum(training.epochs[-1].gpu_s for training in trainings), 3),
        "labelling_gpu_s": round(sum(window.labelling_gpu_s for window in windows), 3),
        "profiling_gpu_s": round(
            sum(window.inference_gpu_s + sum(trial.gpu_s for trial in window.trials) for window in windows), 3
        ),
    }


def _in_words(trace: Trace, to: Path) -> str:
    told = contents(trace)
    return (
        f"{len(trace.streams)} streams, {trace.windows} windows, {told['trainings']} trainings with "
        f"{told['epochs']} epochs: {to}"
    )


@dataclass(slots=True, eq=False)
class _Shown:
    """Shows a bar per stream on a terminal, otherwise logs a line per training."""

    bars: Progress
    drawn: bool

    def expect(self, stream: StreamId, trainings: int) -> None:
        """Starts a stream's bar."""
        self.bars.add_task(f"{stream}: trainings", total=trainings)

    def trained(self, what: str) -> None:
        """Advances by one training."""
        if self.drawn:
            self.bars.advance(self.bars.tasks[-1].id)
        else:
            _LOG.info("trained %s", what)
