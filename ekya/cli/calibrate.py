"""``ekya calibrate``: measures the cost card of this device for runs on virtual time."""

from dataclasses import asdict
from pathlib import Path

from ekya.cli.output import Output
from ekya.simulation.emulated.costcard import calibrate


def make_cost_card(to: Path, output: Output) -> None:
    """Measures this device and writes its cost card.

    Raises:
        UserError: the file cannot be written.
    """
    card = calibrate()
    card.save(to)
    output.report(asdict(card))
    output.console.print(f"This device's cost card is {to}", highlight=False, soft_wrap=True)
