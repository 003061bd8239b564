"""Tracks the pictures of a store that were added since its last update began."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName
from ekya.streams.datasets.image_folder import picture_names
from ekya.system.files import write_text_atomic


@dataclass(frozen=True, slots=True, order=True)
class Picture:
    """A version of a picture: a rewritten file counts as a new picture.

    Attributes:
        written_ns: modification time by the file system.
        node: of the folder.
        label: name of the class.
        file: file name.
    """

    written_ns: int
    node: NodeName
    label: str
    file: str


def pictures(roots: Mapping[NodeName, Path], classes: tuple[str, ...]) -> frozenset[Picture]:
    """Lists all pictures in the folders now.

    Raises:
        UserError: a folder cannot be read.
    """
    return frozenset(
        one
        for node, root in roots.items()
        for file, label in picture_names(root, classes)
        for one in _written(root, node, label, file)
    )


class Began:
    """Pictures with which the last update began, kept in a file for later processes.

    Args:
        path: of the file.

    Raises:
        UserError: the file exists but is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: frozenset[Picture] = frozenset()
        self._had = _kept(path)

    def reads(self, there: frozenset[Picture]) -> None:
        """Notes the pictures of an update that is about to begin."""
        self._reading = there

    def begins(self) -> None:
        """Stores the noted pictures: the update has begun.

        Raises:
            UserError: the file cannot be written; this process remembers the pictures nevertheless.
        """
        self._had = self._reading
        write_text_atomic(self._path, json.dumps([astuple(one) for one in sorted(self._had)]))

    def since(self, there: frozenset[Picture]) -> list[Picture]:
        """Returns the pictures added since the last update began, oldest first; all where none has begun."""
        return sorted(there - self._had)


def _written(root: Path, node: NodeName, label: str, file: str) -> Iterable[Picture]:
    try:
        yield Picture((root / label / file).stat().st_mtime_ns, node, label, file)
    except FileNotFoundError:  # deleted since its folder was listed
        return


def _kept(path: Path) -> frozenset[Picture]:
    if not path.exists():
        return frozenset()
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return frozenset(Picture(int(at), NodeName(node), str(of), str(file)) for at, node, of, file in rows)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: it does not say which pictures the last update began with ({error}); "
            "remove it, and all pictures are new"
        ) from error
