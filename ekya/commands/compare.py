"""``ekya compare``: the same frames under several schedulers, on virtual time."""

from ekya.commands.output import Output
from ekya.commands.run import FleetArguments
from ekya.config import RunOptions
from ekya.errors import UserError
from ekya.report.table import compare_table
from ekya.scheduling.registry import make_scheduler
from ekya.sim.compare import compare


def compare_schedulers(
    arguments: FleetArguments,
    schedulers: tuple[str, ...],
    seeds: tuple[int, ...],
    options: RunOptions,
    output: Output,
) -> None:
    """Compares, then prints one table.

    Raises:
        UserError: an unknown scheduler, one named twice, or a bad fleet file.
    """
    for option, values in (("--schedulers", schedulers), ("--seeds", seeds)):
        if len(set(values)) != len(values):
            raise UserError(f"{option}: the same one stands there twice; keep one of them")
    for name in schedulers:
        make_scheduler(name)
    result = compare(arguments.read(), schedulers, seeds, options)
    output.report(result)
    output.console.print(compare_table(result["runs"]))
