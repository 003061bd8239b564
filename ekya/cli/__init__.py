"""Command line: a command is a frozen config with its options, and the function that takes it."""

import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from ekya import __version__
from ekya.cli import (
    check,
    compare,
    ctl,
    fleet_run,
    fleet_simulate,
    folder,
    golden,
    machine,
    models,
    prepare,
    profile,
    record,
    replay,
    run,
    score,
    serve,
    simulate,
    train,
)
from ekya.cli.command import Command
from ekya.core.errors import UnwellRunError, UserError
from ekya.streams.ingest.credentials import mask_passwords
from ekya.system.files import require_utf8, user_errors

USER_ERROR = 2
"""Exit code for an error that the user can fix, including errors of the command line itself."""

UNWELL = 3
"""Exit code of a run that ended in order, but was no success: unhealthy streams, or nothing adapted."""

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

_golden = typer.Typer(
    name="golden", help="Golden models: label a fleet's streams before they are run, and train."
)
_edge = typer.Typer(name="edge", help="Edge models: train their common base.")
_models = typer.Typer(
    name="models",
    help="Published models that Ekya can fetch, and those of a run; lists the former by itself.",
)
_ctl = typer.Typer(
    name="ctl", help="A running service: what it does, and changes to it.", invoke_without_command=True
)
_fleet = typer.Typer(
    name="fleet", help="Several servers: placement of trainings.", invoke_without_command=True
)


def _add(group: typer.Typer, *commands: Command[Any]) -> None:
    for one in commands:
        one.add_to(group)


# In the order of ``ekya --help``.
_add(app, run.run, serve.serve, replay.replay, compare.compare, profile.profile, simulate.simulate)
_add(app, record.record, prepare.prepare, check.check, check.schema)
_add(_golden, golden.label, train.train)
app.add_typer(_golden)
_add(_edge, train.train_)
app.add_typer(_edge)
_add(_models, models.list_, models.fetch, models.export)
models.list_.run_by_default(_models)
app.add_typer(_models)
_add(app, machine.doctor, machine.calibrate, machine.speeds)
_add(_ctl, ctl.status, ctl.add, ctl.remove, ctl.pause, ctl.resume, ctl.set_)
_add(_ctl, ctl.add_class, ctl.freeze, ctl.unfreeze, ctl.roll_back, ctl.labels, ctl.forget)
app.add_typer(_ctl)
_add(app, score.score)
_add(app, folder.status, folder.gc, folder.backup, folder.restore, folder.monitoring)
_add(_fleet, fleet_simulate.simulate, fleet_run.run)
app.add_typer(_fleet)


@_ctl.callback()
@_fleet.callback()
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _print_version(requested: bool) -> None:
    if requested:
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
        sys.stderr.write(mask_passwords(text))

    def flush(self) -> None:
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: the arguments; None takes those of the process.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=_StandardError())
    logging.getLogger("ekya").setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale may lack γ, and names of the user
            stream.reconfigure(errors="backslashreplace")
    try:
        with user_errors(Path()):
            for name in (*(sys.argv[1:] if arguments is None else arguments), str(Path.cwd())):
                require_utf8(name)
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
    sys.stderr.write(f"ekya: {mask_passwords(' '.join(sentence.split()))}\n")
    return code
