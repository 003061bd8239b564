"""``ekya calibrate``: measures the cost card of this device for runs on virtual time."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """Options of ``ekya calibrate``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="Cost card to write.")]
    json_to: opt.Json = None


@command(CalibrateConfig, "ekya calibrate --out my-device.json")
def calibrate(config: CalibrateConfig, output: Output) -> None:
    """Measure a cost card of this device: the durations for runs in virtual time."""
    from ekya.simulation.emulated.calibrate import calibrate

    card = calibrate()
    card.save(config.out)
    output.report(asdict(card))
    output.say(f"This device's cost card is {config.out}")
