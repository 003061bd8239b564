"""Command line: the options of the commands, one module per group. ``ekya/cli`` implements them."""

import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from ekya import __version__
from ekya.cli import cameras, datasets, fleet, labels, machine, runs, traces
from ekya.core.errors import UnwellRunError, UserError
from ekya.streams.ingest.credentials import masked

USER_ERROR = 2
"""Exit code for an error that the user can fix, including errors of the command line itself."""

UNWELL = 3
"""Exit code of a run that ended in order, but most of whose streams' windows were unhealthy."""

STOPPED = 130
"""Exit code after Ctrl-C, as is usual in shells."""

app = typer.Typer(
    name="ekya",
    help="Ekya keeps the models of a fleet of cameras accurate on the GPU that is there.",
    epilog="Start with: ekya run",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _group in (runs, traces, cameras, datasets, labels, machine):
    app.add_typer(_group.commands)
app.add_typer(fleet.commands, name="fleet")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ekya {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None and not version:
        typer.echo(context.get_help())


class _StandardError:
    """Writes to the current ``sys.stderr``, which a live view replaces while it is shown.

    Masks camera credentials in all log lines.
    """

    def write(self, text: str) -> None:
        sys.stderr.write(masked(text))

    def flush(self) -> None:
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: the arguments; None takes those of the process.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=_StandardError())
    logging.getLogger("ekya").setLevel(logging.INFO)
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except TyperException as error:
        return _fail(f"{error.format_message()} (ekya --help says what is possible)")
    except UserError as error:
        return _fail(str(error))
    except UnwellRunError as error:
        return _fail(str(error), UNWELL)
    except KeyboardInterrupt:
        return STOPPED
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = USER_ERROR) -> int:
    sys.stderr.write(f"ekya: {masked(' '.join(sentence.split()))}\n")
    return code
