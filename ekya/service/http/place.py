"""Address of a service: the file ``service.json`` in its folder, for ``ekya ctl`` and scripts."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.system.files import user_errors, write_text_atomic
from ekya.system.processes import find_process, started_s

PLACE_FILE = "service.json"

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service answers.

    Attributes:
        address: that it listens on.
        port: of TCP.
        pid: its process.
        started_s: start of that, as by ``started_s`` of a process: its number may be another's later.
    """

    address: str
    port: int
    pid: int
    started_s: float

    @staticmethod
    def of_this_process(address: str, port: int) -> "Place":
        """Returns the place of a service in this process."""
        return Place(address, port, os.getpid(), started_s(psutil.Process()))

    @property
    def is_there(self) -> bool:
        """True if its process runs."""
        process = find_process(self.pid)
        return process is not None and started_s(process) == self.started_s

    @property
    def host(self) -> str:
        """Address by which it is reached from its own machine."""
        return _EVERY_ADDRESS.get(self.address, self.address)

    @property
    def url(self) -> str:
        """URL of its page."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def write_into(self, folder: Path) -> None:
        """Writes it into the service's folder."""
        write_text_atomic(folder / PLACE_FILE, json.dumps(asdict(self)) + "\n")

    def remove_from(self, folder: Path) -> None:
        """Removes it from the service's folder, unless another process has written its own since."""
        with contextlib.suppress(UserError):  # a damaged file is no reason not to stop
            if read_place(folder) == self:
                (folder / PLACE_FILE).unlink(missing_ok=True)


def read_place(folder: Path) -> Place | None:
    """Returns where the service of a folder answers; None if it wrote nothing.

    Raises:
        UserError: the file is damaged or cannot be read.
    """
    path = folder / PLACE_FILE
    with user_errors(path):
        try:
            return _PLACE.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UserError(f"{path}: the file is damaged; remove it and restart the service") from error


def find_service(runs: Path, name: str | None) -> tuple[Path, Place]:
    """Returns folder and place of a running service.

    Args:
        runs: folder of all runs.
        name: name of the service; None takes the only one that runs.

    Raises:
        UserError: there is none, or there are several.
    """
    if name is not None:
        place = read_place(runs / name)
        if place is None or not place.is_there:
            raise UserError(f"{runs / name}: no service runs here; start it with ekya serve, or see --runs")
        return runs / name, place
    found = list(_running(runs))
    if not found:
        raise UserError(f"{runs}: no service runs here; start one with ekya serve, or see --runs")
    if len(found) > 1:
        names = ", ".join(folder.name for folder, _ in found)
        raise UserError(f"--name is missing: several services run in {runs}; name one of {names}")
    return found[0]


def _running(runs: Path) -> Iterator[tuple[Path, Place]]:
    for path in sorted(runs.glob(f"*/{PLACE_FILE}")):
        place = read_place(path.parent)
        if place is not None and place.is_there:
            yield path.parent, place


_PLACE = TypeAdapter(Place)
