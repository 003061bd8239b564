"""Commands that examine or measure the machine."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import (
    Json,
    Runs,
    Shares,
)

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\nekya doctor\n\nekya doctor --measure\n\nekya doctor --json - | jq .shares"
)
def doctor(
    runs: Runs = Path("runs"),
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Run the self-test and time the shipped fleet's work; takes some ten seconds."
        ),
    ] = False,
    json_to: Json = None,
) -> None:
    """Say what this machine has, what Ekya will use of it, and why not more.

    The exit code is 1 where ekya run cannot work.
    """
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.doctor import examine_machine

        if not examine_machine(runs, measure, out):
            raise typer.Exit(1)


@commands.command(epilog="Example:\n\nekya calibrate --out my-device.json")
def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Cost card to write.")],
    json_to: Json = None,
) -> None:
    """Measure a cost card of this device: the durations for runs in virtual time."""
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.calibrate import make_cost_card

        make_cost_card(out, channel)


@commands.command(
    epilog="Examples:\n\nekya speeds\n\nekya speeds --model mobilenet_v3_small --shares cpu --json -"
)
def speeds(
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Edge model; default: the shipped fleet's.")
    ] = None,
    shares: Shares = "auto",
    seconds: Annotated[
        float, typer.Option(min=0.2, help="Minimum duration of each of the 20 measurements.")
    ] = 1.5,
    json_to: Json = None,
) -> None:
    """Measure what a share of this device is worth to training and inference, alone and together.

    It is kept in the user's cache folder, by device, share backend and model, and every later `ekya run`
    plans with it.
    """
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.speeds import measure

        measure(model, shares, seconds, out)
