"""``ekya serve``: runs a fleet until stopped, and survives what may happen meanwhile."""

import logging
import os
import pwd
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.core.errors import FullDiskError, UserError
from ekya.models.edge.architecture_table import Task

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServeConfig(opt.FleetOptions, opt.LiveOptions):
    """Options of ``ekya serve``."""

    video: opt.Videos = None
    camera: opt.Cameras = None
    name: Annotated[
        str | None, typer.Option(help="Name of the service, and of its folder; default: the fleet's.")
    ] = None
    dashboard: opt.Dashboard = False
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of page and API; default: http.port.")
    ] = None
    token: Annotated[
        bool, typer.Option(help="Admit only clients that show the token in the service's folder.")
    ] = True
    stop_timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Time to end in order when it is stopped.")
    ] = 30.0
    lend: Annotated[
        bool, typer.Option("--lend", help="Let services that show this one's token train here.")
    ] = False
    borrow_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A service that may train for this one, on labelled samples of its cameras, such as "
            "https://ekya:${SOUTH_TOKEN}@10.0.0.2:8470; give it once for each.",
        ),
    ] = None
    unit: Annotated[bool, typer.Option("--unit", help="Print a systemd unit that runs this, and end.")] = (
        False
    )
    windows: Annotated[int | None, typer.Option(hidden=True)] = None
    clock: Annotated[str | None, typer.Option(hidden=True)] = None
    card: Annotated[str | None, typer.Option(hidden=True)] = None
    cameras: Annotated[str | None, typer.Option(hidden=True)] = None
    resume: Annotated[str | None, typer.Option(hidden=True)] = None
    json_to: Annotated[str | None, typer.Option("--json", hidden=True)] = None


_OF_RUN = {
    "windows": "a service has no last window; use ekya run --windows, or stop the service by Ctrl-C",
    "clock": "a service runs on the wall clock alone; use ekya run --clock",
    "card": "a service plans with what it measures here; use ekya run --clock virtual --card",
    "cameras": "a service has the cameras of its fleet file; use ekya run --cameras",
    "resume": "a service goes on by itself; name it, with --name",
    "json_to": "a service has no end, and so no result; see ekya ctl status --json -",
}
"""Options of ``ekya run`` that a service does not take, and why."""


@command(
    ServeConfig,
    "ekya serve my-fleet.yaml",
    "ekya serve --camera 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live' --golden yolo11x.onnx --name yard",
    "ekya serve --name yard",
    "ekya serve south.yaml --lend",
    "ekya serve north.yaml --borrow-from 'http://ekya:${SOUTH_TOKEN}@127.0.0.1:8470'",
    "ekya serve my-fleet.yaml --unit | sudo tee /etc/systemd/system/ekya-yard.service",
)
def serve(config: ServeConfig, output: Output) -> None:
    """Serve a fleet of cameras until stopped: with a page, an API, metrics and answers to brokers.

    Its folder in --runs is used again when it is started again, with the fleet as it was changed since; a
    supervisor starts the service again when it dies.
    """
    from ekya.service.supervised import FULL_DISK, SUPERVISOR_PID

    for option, reason in _OF_RUN.items():
        if getattr(config, option) is not None:
            raise UserError(f"--{option.removesuffix('_to')}: {reason}")
    fleet, folder = _fleet_and_folder(config)
    fleet = _with_lending(config, fleet)
    try:
        if SUPERVISOR_PID in os.environ:
            _serve(config, fleet, folder, output)
        elif config.unit:
            _print_unit(config, folder)
        else:
            _supervise(config, folder, output)
    except FullDiskError as error:
        # Not that of bad input: the supervisor, and systemd, are to try again.
        _LOG.error("%s", error)
        raise typer.Exit(FULL_DISK) from None


def _fleet_and_folder(config: ServeConfig) -> tuple["FleetConfig", Path]:
    """Returns the fleet to serve, as it was changed if its folder is there, and the folder."""
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.config.fleet_reading import load_kept_fleet
    from ekya.results.storage.run_folder import RunFolder, require_run_name

    if config.name is None:
        fleet = read_fleet(config)
        folder = RunFolder(config.runs / fleet.name)
        return (load_kept_fleet(folder)[0] if folder.fleet.is_file() else fleet), folder.path
    require_run_name(config.name)
    folder = RunFolder(config.runs / config.name)
    if not folder.fleet.is_file():
        return read_fleet(config), folder.path
    if any((config.fleet, config.video, config.camera)):
        try:
            # Passwords that the file holds are needed again.
            read_fleet(config)
        except UserError as error:
            _LOG.warning("%s; this service goes on with %s", error, folder.fleet)
    return load_kept_fleet(folder)[0], folder.path


def _with_lending(config: ServeConfig, fleet: "FleetConfig") -> "FleetConfig":
    """Returns the fleet with what the options say of lending."""
    from ekya.config.fleet_reading import with_values

    changes: dict[str, object] = {"lending.lend": True} if config.lend else {}
    if config.borrow_from:
        leaves = "frames" if fleet.edge.task is Task.DETECT else "crops"
        urls = [{"url": url} for url in config.borrow_from]
        changes |= {"lending.borrow_from": urls, "lending.samples_may_leave": leaves}
    return with_values(fleet, changes) if changes else fleet


def _supervise(config: ServeConfig, folder: Path, output: Output) -> None:
    import resource

    from ekya.service.supervisor import Patience, supervise_service

    # Pictures, answers and logs are for this user alone; a core dump would hold passwords too.
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if (folder / "fleet.yaml").is_file():
        output.print_text(f"Goes on with {folder}, and with the fleet as it is there.")
    output.print_text(f"Log: {folder}/logs/service.jsonl. Stop it with Ctrl-C or SIGTERM.")
    code = supervise_service(_argv(config, folder), folder, Patience(stop_s=config.stop_timeout))
    raise typer.Exit(code)


def _serve(config: ServeConfig, fleet: "FleetConfig", folder: Path, output: Output) -> None:
    """Is the service process."""
    from ekya.api.runnable import make_runnable
    from ekya.cli.fleet_from_options import make_run_options
    from ekya.config.fleet_reading import renew_fleet
    from ekya.config.run_options import ENDS
    from ekya.results.storage.run_folder import RunFolder
    from ekya.runtime.driver.run_session import report_complete
    from ekya.service.process import serve_fleet
    from ekya.service.supervised import AGAIN

    ends, goes_on = ENDS in os.environ, folder if (folder / "fleet.yaml").is_file() else None
    if goes_on is not None:
        renew_fleet(RunFolder(folder))
        if ends and (report_complete(RunFolder(folder), fleet) or RunFolder(folder).summary.is_file()):
            return
    options = make_run_options(config, fleet, goes_on)
    options = replace(options, name=folder.name, endless=not ends, in_place=True)
    asked = config.gpus is not None
    fleet = make_runnable(fleet, options, output.console, live=True, gpus_asked_for=asked)
    if not ends:
        # Not used here, and read again it would refuse a camera that joins after so many.
        fleet = fleet.model_copy(update={"windows": None})
    if config.port is not None:
        fleet = fleet.model_copy(update={"http": fleet.http.model_copy(update={"port": config.port})})
    if serve_fleet(fleet, options, config.token, output.console):
        raise typer.Exit(AGAIN)


def _print_unit(config: ServeConfig, folder: Path) -> None:
    from ekya.service.unit import ServiceUnit

    argv = [argument for argument in _argv(config, folder) if argument != "--unit"]
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container a user may have a number alone, which systemd takes, too
        user = str(os.getuid())
    unit = ServiceUnit(folder.name, argv, user, Path.cwd(), config.runs.resolve(), config.stop_timeout)
    typer.echo(unit.unit_text(), nl=False)


def _argv(config: ServeConfig, folder: Path) -> list[str]:
    """Returns the command line of this process, with the service's name: the file that gives it may go.

    Modules are not looked for in the current folder, which others may write (``-P``).

    Raises:
        UserError: it is not that of ``ekya serve``.
    """
    if "serve" not in sys.argv[1:2]:
        raise UserError("ekya serve: start it as a command of its own")
    named = ["--name", folder.name] if config.name is None else []
    return [sys.executable, "-P", "-m", "ekya", "serve", *named, *sys.argv[2:]]
