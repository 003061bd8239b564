"""``ekya golden label``: labels a fleet's recordings before a run."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_new
from ekya.cli.options import split_names
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.system.ctrl_c import remember_ctrl_c

_LOG = logging.getLogger(__name__)
_SUFFIXES = (".parquet", ".csv")
_FRAMES_PER_LINE = 500


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Options of ``ekya golden label``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="Label file to write: .parquet or .csv.")]
    fleet: opt.FleetFile = None
    video: opt.Videos = None
    golden: opt.Golden = None
    task: opt.EdgeTask = None
    classes: opt.Classes = None
    from_truth: Annotated[
        bool, typer.Option(help="The labels that came with the data, instead of the golden model's.")
    ] = False
    window: opt.Window = None
    windows: opt.Windows = None
    streams: opt.OnlyStreams = ""
    resume: Annotated[bool, typer.Option(help="Resume with an existing file; its labels stay.")] = False
    json_to: opt.Json = None


@command(
    LabelConfig,
    "ekya golden label my-fleet.yaml --out labels.parquet",
    "ekya golden label my-fleet.yaml --from-truth --out labels.csv",
    "ekya golden label --video north.mp4 --golden yolo11x.onnx --out north.parquet",
    "ekya golden label my-fleet.yaml --out labels.parquet --resume",
)
def label(config: LabelConfig, output: Output) -> None:
    """Let the golden model label every frame before a run, which then labels at no GPU cost.

    Name the file in the fleet file: golden: {model: file, weights: labels.parquet}. Labels are written every
    half minute; after Ctrl-C what is labelled is in the file.
    """
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.models.golden.label_file import read_labels
    from ekya.pipeline.costs import fitted_by_card
    from ekya.pipeline.prelabel import label_ahead

    to = config.out
    if to.suffix.lower() not in _SUFFIXES:
        raise UserError(f"--out {to}: labels are written as {' or '.join(_SUFFIXES)}; name such a file")
    require_new(to, config.resume)
    before = read_labels(to) if to.exists() else None
    fleet = read_fleet(config)
    if fleet.windows is not None and not fleet.is_set("window_s"):
        fleet, _ = fitted_by_card(fleet)
    streams = tuple(map(StreamId, split_names(config.streams)))
    with remember_ctrl_c(), open_bars(output.console) as bars:
        shown = _Shown(bars, output.console.is_terminal)
        counts = label_ahead(
            fleet, streams, config.from_truth, before, lambda table: table.save_table(to), shown
        )
    output.write_json({"file": str(to), "streams": {stream: asdict(of) for stream, of in counts.items()}})
    known = sum(of.known for of in counts.values())
    output.print_text(
        f"{len(counts)} streams, {sum(of.labelled for of in counts.values())} frames labelled"
        f"{f', {known} were labelled before' if known else ''}, "
        f"{sum(of.objects for of in counts.values())} boxes: {to}"
    )


@dataclass(slots=True, eq=False)
class _Shown:
    """Shows a bar per stream on a terminal, otherwise logs a line every 500 frames."""

    bars: Progress
    drawn: bool
    stream: str = ""
    done: int = 0

    def expect(self, stream: StreamId, frames: int | None) -> None:
        """Starts a stream's bar."""
        self.stream, self.done = stream, 0
        self.bars.add_task(f"{stream}: frames", total=frames)

    def labelled(self, frames: int) -> None:
        before, self.done = self.done, self.done + frames
        if self.drawn:
            self.bars.advance(self.bars.tasks[-1].id, frames)
        elif self.done // _FRAMES_PER_LINE > before // _FRAMES_PER_LINE:
            _LOG.info("%s: %d frames are labelled", self.stream, self.done)
