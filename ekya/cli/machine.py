"""Commands that measure this machine: ``ekya doctor``, ``ekya calibrate`` and ``ekya speeds``."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.core.errors import UserError
from ekya.core.speed import ModelSpeeds, SpeedCurve
from ekya.results.report.formatting import make_table

if TYPE_CHECKING:
    from ekya.runtime.driver.video_report import VideoReport


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Options of ``ekya doctor``."""

    runs: opt.Runs = Path("runs")
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Run the self-test and time the shipped fleet's work, or that of --video, in a minute.",
        ),
    ] = False
    video: opt.Videos = None
    golden: opt.Golden = None
    student: opt.Student = None
    classes: opt.Classes = None
    offline: opt.Offline = False
    pictures: opt.LookPictures = opt.LOOK_FOLDER
    json_to: opt.Json = None


@command(
    DoctorConfig,
    "ekya doctor",
    "ekya doctor --measure",
    "ekya doctor --video yard.mp4",
    "ekya doctor --measure --video yard.mp4",
    "ekya doctor --json - | jq .shares",
)
def doctor(config: DoctorConfig, output: Output) -> None:
    """Say what this machine has, what Ekya will use of it, and why not more.

    With --video it looks at a recording instead, as `ekya check --look` does. With --measure --video it also
    says for how many cameras like yours the large detector (golden model) answers on every n-th frame, and
    with how many adapting a small one (student) pays. The exit code is 1 where ekya run cannot work.
    """
    from ekya.cli.check import look_at
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.runtime.driver.machine_report import examination_as_json, examine_machine, measure_shipped

    for option in ("golden", "student", "classes"):
        if getattr(config, option) is not None and not config.video:
            raise UserError(f"--{option}: it goes with --video; name a recording of your camera")
    fleet = read_fleet(config) if config.video else None
    looks = [] if fleet is None else look_at(fleet, config.pictures, output)
    if fleet is not None and not config.measure:
        output.write_json({"looks": looks})
        return
    report = None
    with output.console.status("measuring this machine") if config.measure else nullcontext() as status:
        measured = None
        if fleet is not None and status is not None:
            from ekya.runtime.driver.video_report import examine_videos, video_report_as_json

            report = examine_videos(fleet, status.update)
            measured = report.work
        elif config.measure:
            measured = measure_shipped()
        examination = examine_machine(config.runs, measured=measured)
    videos = {} if report is None else {"looks": looks, "video": video_report_as_json(report)}
    output.write_json({**examination_as_json(examination), **videos})
    table = make_table("", "", "", title="This machine", left=3)
    table.show_header = False
    for finding in examination.findings:
        mark = Text("ok", style="green") if finding.fine else Text("missing", style="red")
        table.add_row(mark, Text(finding.what), Text(finding.found))
    output.console.print(table)
    output.print_text(
        f"A fleet may have up to {examination.gpus:g} GPUs here, on {examination.device}, because:"
    )
    for reason in examination.reasons:
        output.print_text(f"- {reason}")
    if report is not None:
        _print_videos(report, config, output)
    if not examination.fine:
        raise typer.Exit(1)


def _print_videos(report: "VideoReport", config: DoctorConfig, output: Output) -> None:
    from ekya.pipeline.default_models import pick_golden
    from ekya.runtime.driver.video_report import describe_video, draw_conclusions, format_answering

    output.print_text("")
    for video in report.videos:
        for line in describe_video(video, report.work.fleet):
            output.print_text(line)
    there = report.machine.capacity_in_words(report.machine.capacity_milli or 0)
    headings = ("cameras", "large model", "small model", "labels", "window", "F1")
    table = make_table(*headings, title=f"What answers cameras like this on {there}", left=6)
    for row in report.crossing.rows:
        table.add_row(*map(Text, format_answering(row)))
    output.console.print(table)
    output.print_text(
        "Labels: frames of a window that the large model looks at so that small ones can learn from them.\n"
        "F1: expected agreement with the large model on every frame, which is taken to be right.\n"
        "Decoding of video is not counted.\n"
    )
    for sentence in draw_conclusions(report):
        output.print_text(sentence)
    for row in report.crossing.rows if config.golden is None else ():
        other = pick_golden(row.cameras, offline=config.offline)
        if other.cached_path != report.work.fleet.golden.weights:
            output.print_text(
                f"With {row.cameras} cameras `ekya run` takes {other.name} as the large model: add --golden "
                f"{other.name} to see its table."
            )
            break
    output.print_text("`ekya run` decides this by itself, from what it measures: nothing has to be set.")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """Options of ``ekya calibrate``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="Cost card to write.")]
    json_to: opt.Json = None


@command(CalibrateConfig, "ekya calibrate --out my-device.json")
def calibrate(config: CalibrateConfig, output: Output) -> None:
    """Measure a cost card of this device: the durations for runs in virtual time."""
    from ekya.simulation.emulated.calibrate import calibrate

    require_writable("--out", config.out)
    card = calibrate()
    card.save(config.out)
    output.write_json(asdict(card))
    output.print_text(f"This device's cost card is {config.out}")


@dataclass(frozen=True, kw_only=True)
class SpeedsConfig:
    """Options of ``ekya speeds``."""

    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Edge model; default: the shipped fleet's.")
    ] = None
    shares: opt.Shares = "auto"
    seconds: Annotated[
        float, typer.Option(min=0.2, help="Minimum duration of each of the 20 measurements.")
    ] = 1.5
    json_to: opt.Json = None


@command(SpeedsConfig, "ekya speeds", "ekya speeds --model mobilenet_v3_small --shares cpu --json -")
def speeds(config: SpeedsConfig, output: Output) -> None:
    """Measure what a share of this device is worth to training and inference, alone and together.

    It is kept in the user's cache folder, by device, share backend and model, and every later `ekya run`
    plans with it.
    """
    from ekya.config.fleet_file import DEFAULT_FLEET
    from ekya.config.fleet_reading import load_fleet
    from ekya.config.fleet_sections import RetrainingConfig
    from ekya.config.shipped import shipped_path
    from ekya.gpu.backends.registry import choose_backend
    from ekya.models.edge.architectures import EDGE_MODELS
    from ekya.models.edge.spec import FRAME_SIDES
    from ekya.pipeline.kept_measurements import SPEEDS, speed_key
    from ekya.pipeline.setup import crop_side
    from ekya.pipeline.speed_jobs import ProbeSpec
    from ekya.pipeline.speed_probe import SHARES_MILLI, TOGETHER, measure_speeds
    from ekya.planning.profiling.speed_curves import among_others

    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    model = config.model or fleet.edge.model
    if model not in EDGE_MODELS:
        raise UserError(f"--model {model}: there is no such edge model; use one of {', '.join(EDGE_MODELS)}")
    side = crop_side(fleet)
    if model in FRAME_SIDES:
        side, lists = FRAME_SIDES[model], RetrainingConfig().for_detector()
        fleet = fleet.model_copy(update={"retraining": lists})
    chosen = choose_backend(config.shares)
    key = speed_key(chosen, model)
    # The most expensive γ of the model's usual ones, with its smallest batches.
    deepest = max(fleet.retrain_configs(), key=lambda gamma: (gamma.trainable_blocks, -gamma.batch_size))
    gamma = replace(deepest, data_fraction=1.0)
    spec = ProbeSpec(model, side, gamma, chosen.capability.device, config.seconds)
    with chosen.backend.open(1) as opened, open_bars(output.console) as bars:
        bar = bars.add_task(f"{model} with {chosen.name}", total=2 * (len(SHARES_MILLI) + len(TOGETHER)))
        measured = measure_speeds(opened, spec, progress=lambda: bars.advance(bar))
    SPEEDS.save(key, measured)
    planned = among_others(measured.training)
    output.write_json({**key, "speeds": asdict(measured), "planned_with": planned.points})
    output.console.print(_table(f"{model} on {key['device']}, shares by {chosen.name}", measured, planned))
    output.print_text(f"Kept in {SPEEDS.path}; every run here plans with it.")


def _table(title: str, speeds: ModelSpeeds, planned: SpeedCurve) -> Table:
    table = make_table("share", "training", "training among others", "inference", title=title, left=0)
    curves = (speeds.training.alone, planned, speeds.inference.alone)
    for share in sorted({share for curve in curves for share, _ in curve.points if share}):
        table.add_row(f"{share / 10:g}%", *(f"{curve.speed_at(share):.3f}" for curve in curves))
    for own, other in zip(speeds.training.together, speeds.inference.together, strict=True):
        table.add_row(f"{own.jobs} jobs together", f"{own.throughput:.3f}", "", f"{other.throughput:.3f}")
    return table
