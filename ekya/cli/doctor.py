"""``ekya doctor``: examines this machine."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Options of ``ekya doctor``."""

    runs: opt.Runs = Path("runs")
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Run the self-test and time the shipped fleet's work; takes some ten seconds."
        ),
    ] = False
    json_to: opt.Json = None


@command(DoctorConfig, "ekya doctor", "ekya doctor --measure", "ekya doctor --json - | jq .shares")
def doctor(config: DoctorConfig, output: Output) -> None:
    """Say what this machine has, what Ekya will use of it, and why not more.

    The exit code is 1 where ekya run cannot work.
    """
    from ekya.runtime.driver.machine_report import examination_as_json, examine_machine

    with output.console.status("measuring this machine") if config.measure else nullcontext():
        examination = examine_machine(config.runs, measure=config.measure)
    output.write_json(examination_as_json(examination))
    table = Table(title="This machine", title_justify="left", show_header=False)
    for finding in examination.findings:
        mark = Text("ok", style="green") if finding.fine else Text("missing", style="red")
        table.add_row(mark, Text(finding.what), Text(finding.found))
    output.console.print(table)
    output.print_text(
        f"A fleet may have up to {examination.gpus:g} GPUs here, on {examination.device}, because:"
    )
    for reason in examination.reasons:
        output.print_text(f"- {reason}")
    if not examination.fine:
        raise typer.Exit(1)
