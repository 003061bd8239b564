"""``ekya score``: scores a run of unlabelled video on more of its frames."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.cli.options import open_run_folder
from ekya.core.errors import UserError
from ekya.system.ctrl_c import remember_ctrl_c


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Options of ``ekya score``."""

    run: opt.RunArgument
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames of each window of a stream; default: all.")
    ] = None
    runs: opt.Runs = Path("runs")
    json_to: opt.Json = None


@command(ScoreConfig, "ekya score runs/videos", "ekya score videos --frames 100 --json -")
def score(config: ScoreConfig, output: Output) -> None:
    """Score a run on more frames of its videos, and write its summary and report anew.

    The golden model labels them. Frames that were scored before stay; after Ctrl-C what is labelled counts,
    and the same command goes on.
    """
    from ekya.api.results import Finished
    from ekya.cli.run import report_run
    from ekya.config.fleet_reading import load_fleet
    from ekya.results.finalize import finish_run
    from ekya.results.metrics.summary import SummaryHost
    from ekya.system.files import hold_folder

    folder = open_run_folder(config.run, config.runs)
    if not folder.summary.is_file():
        raise UserError(
            f"{folder.path}: it has no summary yet; end its run, with ekya run --resume {folder.path}"
        )
    before = json.loads(folder.summary.read_text(encoding="utf-8"))
    fleet = load_fleet(folder.fleet)
    with hold_folder(folder.path), remember_ctrl_c():
        host = SummaryHost(golden_device=before["golden"].get("device"), others=before["host"])
        frames = config.frames or sys.maxsize
        finish_run(folder, fleet, before["world"], before["seed"], host, frames)
        report_run(Finished(folder.path), output)
