"""Commands: a frozen config whose fields are the options, and the function that takes it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import typer

from ekya.cli.output import Output, open_output

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
        alone.command(self.name, epilog=epilog)(parsed)
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
