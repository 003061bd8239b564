"""Address of a service: the file ``service.json`` in its folder, for ``ekya ctl`` and scripts."""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.system.files import cache_folder, user_errors, write_text_atomic
from ekya.system.processes import find_process, started_s

PLACE_FILE, _LINKS = "service.json", "services"

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service answers.

    Attributes:
        address: that it listens on.
        port: of TCP.
        pid: its process.
        started_s: start of that, as by ``started_s`` of a process: its number may be another's later.
        certificate: file with the certificate by which it answers; None if it is not encrypted.
    """

    address: str
    port: int
    pid: int
    started_s: float
    certificate: Path | None = None

    @staticmethod
    def of_this_process(address: str, port: int, certificate: Path | None = None) -> "Place":
        """Returns the place of a service in this process."""
        return Place(address, port, os.getpid(), started_s(psutil.Process()), certificate)

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
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def write_into(self, folder: Path) -> None:
        """Writes it into the service's folder."""
        write_text_atomic(folder / PLACE_FILE, _PLACE.dump_json(self).decode() + "\n")

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


def list_for_user(folder: Path) -> None:
    """Has ``find_service`` of this user find the service of a folder, wherever it is; the link stays."""
    with contextlib.suppress(OSError, UserError):  # a user without a home, or a disk that is read only
        link = cache_folder() / _LINKS / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.resolve())


def find_service(runs: Path | None, name: str | None) -> tuple[Path, Place]:
    """Returns folder and place of a running service.

    Args:
        runs: folder of all runs; None for ``runs``, and where that has none, for every folder in which this
            user runs services.
        name: name of the service; None takes the only one that runs.

    Raises:
        UserError: there is none, or there are several.
    """
    where = Path("runs") if runs is None else runs
    found = list(_running([where / name] if name is not None else where.glob("*")))
    if not found and runs is None:
        with contextlib.suppress(UserError):  # of a user without a home
            linked = list(_running(link.resolve() for link in (cache_folder() / _LINKS).glob("*")))
            found = [one for one in linked if name in (None, one[0].name)]
    if not found:
        elsewhere = ", and none of this user elsewhere" if runs is None else ""
        here = where / (name or "")
        raise UserError(f"{here}: no service runs here{elsewhere}; start it with ekya serve, or see --runs")
    if len(found) > 1:
        names = ", ".join(f"{folder.name} in {folder.parent}" for folder, _ in found)
        raise UserError(f"--name is missing: several services run, {names}; add --name, or --runs, of one")
    return found[0]


def _running(folders: Iterable[Path]) -> Iterator[tuple[Path, Place]]:
    for folder in sorted(one for one in folders if (one / PLACE_FILE).exists()):
        place = read_place(folder)
        if place is not None and place.is_there:
            yield folder, place


_PLACE = TypeAdapter(Place)
