"""Shared by generators of data sets: options, the folder to fill or continue, progress, the last line."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ekya.core.errors import UserError
from ekya.system.files import user_errors, write_text_atomic

_OPTIONS = "generated.json"


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a type of option: whole numbers in a range."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least or int(text) > (most or int(text)):
            upto = f" to {most}" if most else " or more"
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number of {least}{upto}")
        return int(text)

    return number


class OneSentence(argparse.ArgumentParser):
    """Refuses options in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        self.exit(2, f"{message}; see --help.\n")


def claim_root(root: Path, options: Mapping[str, object]) -> None:
    """Notes in a folder how its files are drawn, and refuses one whose files were drawn otherwise.

    Raises:
        UserError: the folder holds other files, or cannot be written.
    """
    file = root / _OPTIONS
    text = json.dumps(dict(options), indent=2) + "\n"
    with user_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        if file.exists():
            if file.read_text(encoding="utf-8") != text:
                raise UserError(f"{file}: was made with other options; repeat them, or name another --out")
        elif any(root.iterdir()):
            raise UserError(f"{root}: holds other files; name a new or empty folder by --out")
    write_text_atomic(file, text)


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows progress and the time left on a terminal; call the yielded function once for each step."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=console, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


def end_with(generate: Callable[[], str]) -> None:
    """Runs a generator, prints its last line, and ends in one sentence where it cannot go on."""
    try:
        Console().out(generate(), highlight=False)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; the same command continues here.\n")
        raise SystemExit(130) from None
