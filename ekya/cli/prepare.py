"""``ekya prepare``: checks and indexes a data set and writes a fleet file for it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.cli.options import split_names
from ekya.core.errors import UserError
from ekya.system.files import user_errors

if TYPE_CHECKING:
    from ekya.pipeline.prepare_dataset import Preparation, Progress
    from ekya.streams.datasets.dataset import StreamFindings

_LOG = logging.getLogger(__name__)

_FRAMES_PER_LINE = 500


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options of ``ekya prepare``."""

    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cityscapes, waymo, sample-list or image-folder.")
    ]
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the data set.")]
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fleet file to write; default: NAME.yaml.")
    ] = None
    streams: opt.OnlyStreams = ""
    classes: opt.Classes = None
    drift: opt.Drift = None
    gpus: opt.Gpus = None
    window: opt.Window = None
    resume: Annotated[bool, typer.Option(help="Resume an interrupted check.")] = False
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier result.")] = False
    json_to: opt.Json = None


@command(
    PrepareConfig,
    "ekya prepare cityscapes --root ~/data/cityscapes",
    "ekya prepare cityscapes --root ~/data/cityscapes --streams aachen,bremen --out two.yaml",
    "ekya prepare sample-list --root ~/crossings --window 60 --json -",
    "ekya prepare image-folder --root ~/crops --resume",
)
def prepare(config: PrepareConfig, output: Output) -> None:
    """Check a data set, say what is missing and where it is had, and write a fleet file for it.

    Nothing is downloaded. Every picture is decoded once; beside the fleet file come the data's own labels and
    a folder with an index. The exit code is 1 where something is missing or damaged, and 2 where nothing can
    be used. ekya replay NAME DIR prepares and runs.
    """
    preparation = plan(
        config.name, config.root, config.out, config.streams, config.classes, config.drift, output
    )
    places = preparation.places
    require_writable("--out", places.out, is_read=True)
    with user_errors(places.out):
        places.refuse_existing(config.resume, config.overwrite)
    if config.resume:
        preparation.refuse_other()
    with show_examination(preparation, output, "the same command with --resume goes on") as progress:
        findings = preparation.examine(progress, resume=config.resume)
    try:
        preparation.install(findings, config.gpus, config.window)
    except UserError:
        output.write_json(report(preparation, findings, None))
        raise
    output.write_json(report(preparation, findings, places.out))
    left_out = preparation.describe_left_out(findings)
    output.print_text("\n".join([*_in_words(preparation, findings), *left_out, f"ekya run {places.out}"]))
    if left_out:
        raise typer.Exit(1)


def plan(
    name: str,
    root: Path,
    out: Path | None,
    streams: str,
    classes: str | None,
    drift: str | None,
    output: Output,
) -> "Preparation":
    """Returns what is to be prepared, with the values of the options.

    Raises:
        UserError: as ``plan_preparation``, or nothing of the data set is there.
    """
    from ekya.pipeline.prepare_dataset import plan_preparation

    named = tuple(one for one in split_names(classes) if one != "auto")
    preparation = plan_preparation(name, root, out, split_names(streams), named, drift)
    if not preparation.streams:
        output.write_json(report(preparation, {}, None))
        dataset, first = preparation.dataset, next(iter(preparation.survey.missing), None)
        raise UserError(
            f"{preparation.root}: nothing of {dataset.title} is there{f' ({first})' if first else ''}; it is "
            f"had from {dataset.had_from} ({dataset.licence}), and its folder has to hold {dataset.layout}"
        )
    return preparation


@contextmanager
def show_examination(preparation: "Preparation", output: Output, how_to_go_on: str) -> "Iterator[Progress]":
    """Yields what shows progress and time left: a bar on a terminal, elsewhere a line every 500 frames."""
    names = list(preparation.streams)
    total = sum(preparation.streams.values())
    with open_bars(output.console) as bars:
        task = bars.add_task("frames", total=total)

        def show(stream: str, frames: int) -> None:
            done = bars.tasks[task].completed + frames
            bars.update(
                task, advance=frames, description=f"{stream} ({names.index(stream) + 1} of {len(names)})"
            )
            if bars.disable and done // _FRAMES_PER_LINE > (done - frames) // _FRAMES_PER_LINE:
                left_s = bars.tasks[task].time_remaining
                left = "" if left_s is None else f", {left_s / 60:.0f} min left"
                _LOG.info("%s: %d of %d frames are checked%s", stream, done, total, left)

        try:
            yield show
        except KeyboardInterrupt:
            _LOG.info("interrupted: what was finished is kept, and %s", how_to_go_on)
            raise


def report(
    preparation: "Preparation", findings: "Mapping[str, StreamFindings]", out: Path | None
) -> Mapping[str, object]:
    """Returns what a preparation found as values of JSON; ``out`` is the fleet file, if there is one."""
    dataset = preparation.dataset
    return {
        "dataset": dataset.name,
        "title": dataset.title,
        "licence": dataset.licence,
        "had_from": dataset.had_from,
        "layout": dataset.layout,
        "root": str(preparation.root),
        "fleet": None if out is None else str(out),
        "missing": list(preparation.survey.missing),
        "streams": {name: asdict(found) for name, found in findings.items()},
    }


def _in_words(preparation: "Preparation", findings: "Mapping[str, StreamFindings]") -> Iterator[str]:
    yield f"{preparation.dataset.title}; {preparation.dataset.licence}"
    for name, found in findings.items():
        objects = ", ".join(f"{count} {what}" for what, count in found.objects.items()) or "no objects"
        damaged = f", {len(found.problems)} missing or damaged" if found.problems else ""
        drift = f"; {found.drift_in_words}" if found.conditions else ""
        yield f"{name}: {found.frames} frames in {found.duration_s:g} s{damaged}; {objects}{drift}"
