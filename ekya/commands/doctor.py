"""``ekya doctor``: prints the examination of this machine as a table or as JSON."""

from contextlib import nullcontext
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ekya.commands.output import Output
from ekya.doctor import as_json, examine


def examine_machine(runs: Path, measure: bool, output: Output) -> bool:
    """Examines the machine, prints the result, and returns whether a run can work here."""
    with output.console.status("measuring this machine") if measure else nullcontext():
        examination = examine(runs, measure=measure)
    output.report(as_json(examination))
    table = Table(title="This machine", title_justify="left", show_header=False)
    for finding in examination.findings:
        mark = Text("ok", style="green") if finding.fine else Text("missing", style="red")
        table.add_row(mark, Text(finding.what), Text(finding.found))
    output.console.print(table)
    output.console.print(
        f"A fleet may have up to {examination.gpus:g} GPUs here, on {examination.device}, because:",
        highlight=False,
    )
    for reason in examination.reasons:
        output.console.print(f"- {reason}", highlight=False, markup=False)
    return examination.fine
