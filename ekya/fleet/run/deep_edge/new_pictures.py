"""Which pictures of a store came since its last update began."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from ekya.errors import UserError
from ekya.files import write_text_atomic
from ekya.fleet.policy.names import NodeName
from ekya.streams.image_folder import picture_names


@dataclass(frozen=True, slots=True, order=True)
class Picture:
    """A picture as it was written; one that takes the place of another is a new one.

    Attributes:
        written_ns: when, by the file system.
        node: whose folder it is in.
        label: its class.
        file: its name.
    """

    written_ns: int
    node: NodeName
    label: str
    file: str


def pictures(roots: Mapping[NodeName, Path], classes: tuple[str, ...]) -> frozenset[Picture]:
    """All that lie there now.

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
    """With which pictures the last update began, also for the next process that asks.

    Args:
        path: the file that keeps it.

    Raises:
        UserError: there is a file that is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading: frozenset[Picture] = frozenset()
        self._had = _kept(path)

    def reads(self, there: frozenset[Picture]) -> None:
        """An update is about to begin with these."""
        self._reading = there

    def begins(self) -> None:
        """It has begun.

        Raises:
            UserError: the file cannot be written; this process knows it all the same.
        """
        self._had = self._reading
        write_text_atomic(self._path, json.dumps([astuple(one) for one in sorted(self._had)]))

    def since(self, there: frozenset[Picture]) -> list[Picture]:
        """Those that came after it, oldest first; all where no update has begun yet."""
        return sorted(there - self._had)


def _written(root: Path, node: NodeName, label: str, file: str) -> Iterable[Picture]:
    try:
        yield Picture((root / label / file).stat().st_mtime_ns, node, label, file)
    except FileNotFoundError:  # taken away since its folder was listed
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
