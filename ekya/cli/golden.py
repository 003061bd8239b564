"""``ekya golden label``: labels a fleet's recordings before a run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.progress import Progress

from ekya.cli.output import Output, bars_of, require_writable
from ekya.cli.run import FleetArguments, noticing_ctrl_c
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.label_file import read_labels
from ekya.pipeline.costs import fitted_by_card
from ekya.pipeline.prelabel import Counts, label_ahead

_LOG = logging.getLogger(__name__)
_SUFFIXES = (".parquet", ".csv")
_TELL_EVERY = 500


def label_fleet(
    arguments: FleetArguments,
    streams: Sequence[StreamId],
    from_truth: bool,
    to: Path,
    resume: bool,
    output: Output,
) -> None:
    """Labels the streams and saves the labels on the way.

    Raises:
        UserError: the fleet file is invalid, the output file exists (without ``resume``), cannot be resumed
            or cannot be written; raised before any work is done.
        KeyboardInterrupt: after Ctrl-C; the labels made so far are in the file.
    """
    if to.suffix.lower() not in _SUFFIXES:
        raise UserError(f"--out {to}: labels are written as {' or '.join(_SUFFIXES)}; name such a file")
    require_writable("--out", to)
    if to.exists() and not resume:
        raise UserError(f"--out {to}: the file is there already; go on with it by --resume, or name another")
    before = read_labels(to) if to.exists() else None
    fleet = arguments.read()
    if fleet.windows is not None and not fleet.says("window_s"):
        fleet, _ = fitted_by_card(fleet)
    with noticing_ctrl_c(), bars_of(output.console) as bars:
        shown = _Shown(bars, output.console.is_terminal)
        counts = label_ahead(fleet, streams, from_truth, before, lambda table: table.save(to), shown)
    output.report({"file": str(to), "streams": {stream: asdict(of) for stream, of in counts.items()}})
    output.console.print(_in_words(counts, to), highlight=False, soft_wrap=True)


def _in_words(counts: Mapping[StreamId, Counts], to: Path) -> str:
    labelled = sum(of.labelled for of in counts.values())
    known = sum(of.known for of in counts.values())
    objects = sum(of.objects for of in counts.values())
    before = f", {known} were labelled before" if known else ""
    return f"{len(counts)} streams, {labelled} frames labelled{before}, {objects} boxes: {to}"


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
        """Advances by this many labelled frames."""
        before, self.done = self.done, self.done + frames
        if self.drawn:
            self.bars.advance(self.bars.tasks[-1].id, frames)
        elif self.done // _TELL_EVERY > before // _TELL_EVERY:
            _LOG.info("%s: %d frames are labelled", self.stream, self.done)
