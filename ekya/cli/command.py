"""Commands: a frozen config whose fields are the options, the function that takes it, and what it prints."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperCommand

from ekya.core.errors import UserError
from ekya.system.files import is_written_into, standard_descriptor, user_errors, write_text_atomic

STDOUT = "-"
"""Value of ``--json`` for standard output, which then holds nothing else."""


@dataclass(frozen=True, slots=True)
class Output:
    """Text and JSON output of a command.

    Attributes:
        console: text for people.
        json_to: file for JSON, ``STDOUT``, or None for no JSON.
        json_descriptor: the original standard output, if ``json_to`` is ``STDOUT``.
    """

    console: Console
    json_to: str | None
    json_descriptor: int | None = None

    def print_text(self, text: str) -> None:
        """Prints lines of text as they are."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def print_parts(self, parts: Iterable[RenderableType]) -> None:
        """Prints tables, and lines of text."""
        for part in parts:
            if isinstance(part, str):
                self.print_text(part)
            else:
                self.console.print(part)

    def write_json(self, content: Mapping[str, object]) -> None:
        """Writes JSON if it was asked for.

        Raises:
            UserError: full disk, no permission and the like.
        """
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        if self.json_descriptor is not None:
            with user_errors(Path("standard output")), os.fdopen(os.dup(self.json_descriptor), "wb") as to:
                to.write(text.encode())
        elif self.json_to is not None:
            write_text_atomic(Path(self.json_to), text)


@contextmanager
def open_output(json_to: str | None) -> Iterator[Output]:
    """Opens a command's output and checks it before any work is done.

    With ``STDOUT``, all other output of this process and its children goes to standard error. File
    descriptor 1 itself is redirected, because Ray's workers and C libraries write to it directly.

    Raises:
        UserError: the file's folder is missing or cannot be written to.
    """
    if json_to is not None and standard_descriptor(Path(json_to)) == 1:
        json_to = STDOUT
    if json_to != STDOUT:
        if json_to is not None:
            require_writable("--json", Path(json_to))
        yield Output(Console(), json_to)
        return
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        yield Output(Console(stderr=True), json_to, real)
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


@contextmanager
def open_bars(console: Console) -> Iterator[Progress]:
    """Yields progress bars with counts on a terminal; nothing is drawn elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        yield bars


def require_writable(option: str, path: Path, *, is_read: bool = False) -> None:
    """Refuses a file that could not be written after the work.

    Args:
        option: the option that names it.
        path: the file.
        is_read: it is read again, so it must be no FIFO, device and the like.

    Raises:
        UserError: it is a folder, or its folder is missing or cannot be written to.
    """
    if path.is_dir():
        raise UserError(f"{option} {path}: this is a folder; name a file in it")
    with user_errors(path):
        file = path.resolve() if path.is_symlink() else path
        written = path if is_written_into(path) else file.parent
        if not written.exists():
            raise UserError(f"{option} {path}: there is no folder {written}; make it, or name another file")
        if not os.access(written, os.W_OK):
            raise PermissionError(13, "not writable")
    if is_read and written == path:
        raise UserError(f"{option} {path}: this is no file, and is to be read again; name a file")


def require_new(path: Path, resume: bool) -> None:
    """Refuses the file of ``--out`` if it could not be written, or exists and is not to be resumed.

    Raises:
        UserError: names the file.
    """
    require_writable("--out", path, is_read=True)
    if path.exists() and not resume:
        raise UserError(
            f"--out {path}: the file is there already; go on with it by --resume, or name another"
        )


class _OnceEach(TyperCommand):
    """A command that refuses an option of one value that stands twice: the last would count in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for option in given:
            if given.count(option) > 1 and not (option.multiple or option.is_eager):
                raise UserError(f"{option.opts[0]}: it stands there twice; keep one of them")
        return super().parse_args(ctx, args)


_Config = TypeVar("_Config")


@dataclass(frozen=True, slots=True)
class Command(Generic[_Config]):
    """A command of the command line.

    Attributes:
        config: dataclass; each field is annotated with the typer option or argument that it is parsed from.
        run: runs the command; its docstring is the help.
        examples: command lines to begin with.
    """

    config: type[_Config]
    run: Callable[[_Config, Output], None]
    examples: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name on the command line: ``roll-back`` of ``roll_back``, ``set`` of ``set_``."""
        return self.run.__name__.strip("_").replace("_", "-")

    def run_by_default(self, group: typer.Typer) -> None:
        """Makes a group without a subcommand run the command, without options."""

        def run_alone(context: typer.Context) -> None:
            if context.invoked_subcommand is None:
                with open_output(None) as output:
                    self.run(self.config(), output)

        group.callback(invoke_without_command=True)(run_alone)

    def add_to(self, group: typer.Typer) -> None:
        """Adds the command to a group, behind those that it has."""

        def parsed(**options: Any) -> None:
            with open_output(options.get("json_to")) as channel:
                self.run(self.config(**options), channel)

        # typer reads the options from the signature, and the help from the docstring.
        cast(Any, parsed).__signature__ = _signature(self.config)
        parsed.__doc__ = self.run.__doc__
        alone = typer.Typer()  # commands of a group are listed before its groups, unless they are in one
        epilog = "Examples:\n\n" + "\n\n".join(self.examples)
        alone.command(self.name, cls=_OnceEach, epilog=epilog)(parsed)
        group.add_typer(alone)


def _signature(config: type) -> inspect.Signature:
    """Returns the options of a config: its own first, then those that it inherits."""
    all_options = inspect.signature(config)
    order = [name for one in config.__mro__ for name in inspect.get_annotations(one)]
    rest = sorted(all_options.parameters.values(), key=lambda option: order.index(option.name))
    return all_options.replace(parameters=rest)


def command(
    config: type[_Config], *examples: str
) -> Callable[[Callable[[_Config, Output], None]], Command[_Config]]:
    """Returns a decorator that makes a function a command with these options and examples."""
    return lambda run: Command(config, run, examples)
