"""``ekya profile``: trains every γ of a fleet to its end and records a trace for simulation."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_new
from ekya.cli.options import split_names
from ekya.core.trace import Trace
from ekya.core.units import StreamId
from ekya.system.ctrl_c import remember_ctrl_c

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Options of ``ekya profile``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="Trace to write.")]
    fleet: opt.FleetFile = None
    video: opt.Videos = None
    golden: opt.Golden = None
    student: opt.Student = None
    task: opt.EdgeTask = None
    classes: opt.Classes = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers, as of a run.")] = 0
    window: opt.Window = None
    windows: opt.Windows = None
    streams: opt.OnlyStreams = ""
    families: Annotated[
        int | None, typer.Option(min=1, help="Number of families of configurations, the cheapest first.")
    ] = None
    every_start: Annotated[
        bool,
        typer.Option(
            help="From every model that may serve by then, not only from the youngest of each family; slow."
        ),
    ] = False
    resume: Annotated[bool, typer.Option(help="Resume an interrupted trace.")] = False
    json_to: opt.Json = None
    card: opt.Card = None


@command(
    ProfileConfig,
    "ekya profile --out profiles.parquet",
    "ekya profile --families 1 --windows 3 --streams cam-1,cam-2 --out quick.parquet",
    "ekya profile --video north.mp4 --golden yolo11x.onnx --student FastestDet.onnx --out north.parquet",
    "ekya profile --video north.mp4 --golden FastestDet.onnx --task classify --window 16 --out north.parquet",
    "ekya profile --out profiles.parquet --resume",
)
def profile(config: ProfileConfig, output: Output) -> None:
    """Record a trace: run every retraining configuration to its end, on what a run would see.

    The trace is written after each stream; what was finished before Ctrl-C is a trace of fewer streams.
    """
    from ekya.api.fleets import Fleet
    from ekya.api.profiling import profile
    from ekya.cli.fleet_from_options import read_fleet

    require_new(config.out, config.resume)
    fleet = Fleet.of(read_fleet(config))
    with remember_ctrl_c(), open_bars(output.console) as bars:
        trace = profile(
            fleet,
            config.out,
            seed=config.seed,
            streams=split_names(config.streams),
            families=config.families,
            every_start=config.every_start,
            resume=config.resume,
            card=config.card,
            progress=_Shown(bars, output.console.is_terminal),
        )
    facts = _facts(trace)
    output.write_json(facts)
    output.print_text(
        f"{len(trace.streams)} streams, {trace.windows} windows, {facts['trainings']} trainings with "
        f"{facts['epochs']} epochs: {config.out}"
    )


def _facts(trace: Trace) -> dict[str, object]:
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


@dataclass(frozen=True, slots=True)
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
