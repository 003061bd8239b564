"""The argument of commands that take the folder of a run or a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ekya.results.storage.run_folder import RunFolder

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run or a service, or its name in --runs.")
]
"""A folder that exists."""


def run_folder_of(run: Path, runs: Path = Path("runs")) -> "RunFolder":
    """Returns the folder that an argument names.

    Raises:
        UserError: it holds no run.
    """
    from ekya.results.storage.run_folder import RunFolder

    return RunFolder.open(run if run.is_dir() else runs / run)
