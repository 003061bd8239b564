"""Reference page of the command line: every command with its arguments and options."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Protocol

from page_text import code, prose_of, table

_EXAMPLES = "Examples:"
_KINDS = {
    "N": r"<(?:int|float)(?: range)?>|(?:INTEGER|FLOAT)(?: RANGE)?",
    "TEXT": r"<(?:str|list\[str\])>|TEXT",
    "PATH": r"<path>|PATH",
    r"<\1>": r"[<\[]([a-z-]+(?:\|[a-z-]+)+)[>\]]",
}
_DETAILS = re.compile(r"\s*\[([^\[\]]*)\]$")


class Command(Protocol):
    """A command of click, as typer makes it; a group also has ``commands``."""

    help: str | None
    epilog: str | None
    params: list[Any]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = ..., **extra: Any) -> Any:
        """Returns the context in which the command describes itself."""


def commands_of(root: Command, name: str) -> Iterator[tuple[str, Command]]:
    """Yields each command below a root with its full name, groups included."""
    for word, command in getattr(root, "commands", {}).items():
        yield f"{name} {word}", command
        yield from commands_of(command, f"{name} {word}")


def page(root: Command, name: str) -> str:
    """Returns the commands below a root as Markdown, a section each."""
    return "\n".join(_section(full, command) for full, command in commands_of(root, name))


def options_of(command: Command, name: str) -> list[tuple[str, str]]:
    """Returns arguments and options of a command with their help, as ``--help`` has them."""
    context = command.make_context(name, [], resilient_parsing=True)
    records = ((one.param_type_name, one.get_help_record(context)) for one in command.params)
    return [(_plain(kind, *record[:1]), record[1]) for kind, record in records if record is not None]


def _plain(kind: str, written: str) -> str:
    """Returns an option as it is written, with words for its type that do not depend on typer's version."""
    if kind == "argument":
        return written.split(maxsplit=1)[0].strip("[]")
    for words, kinds in _KINDS.items():
        written = re.sub(rf"\s(?:{kinds})$", f" {words}", written)
    return written


def _section(name: str, command: Command) -> str:
    level = "#" * len(name.split())
    about = inspect.cleandoc(command.help or "").split("\n\n")
    parts = [f"{level} {code(name)}\n", *(f"{prose_of(paragraph)}\n" for paragraph in about)]
    if options := options_of(command, name):
        parts.append(table(("argument or option", "meaning", "default"), map(_row, options)))
    if examples := _examples(command.epilog or ""):
        parts.append("\n".join(["```", *examples, "```\n"]))
    return "\n".join(parts)


def _row(record: tuple[str, str]) -> tuple[str, str, str]:
    """Splits click's notes behind the help, such as ``[default: 0; x>=0]``, from the help."""
    option, help_text = record
    default, notes = "", []
    while match := _DETAILS.search(help_text):
        help_text = help_text[: match.start()]
        for note in match.group(1).split("; "):
            key, colon, value = note.partition("default: ")
            if colon and not key:
                default = code(value)
            else:
                notes.append(note)
    meaning = prose_of(help_text) + (f" ({'; '.join(map(code, notes))})" if notes else "")
    return code(option), meaning, default


def _examples(epilog: str) -> list[str]:
    _, found, examples = epilog.partition(_EXAMPLES)
    return [line.strip() for line in examples.splitlines() if line.strip()] if found else []
