"""Memory of a store about its updates, in a file for later processes."""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean

from ekya.core.errors import UserError
from ekya.streams.datasets.image_folder import picture_names
from ekya.system.files import write_text_atomic

_LAST = 10
"""Number of former updates that count."""


@dataclass(frozen=True, slots=True, order=True)
class StoredPicture:
    """A version of a picture: a rewritten file counts as a new picture.

    Attributes:
        written_ns: modification time by the file system.
        label: name of the class.
        file: file name.
    """

    written_ns: int
    label: str
    file: str


def pictures(root: Path, classes: tuple[str, ...]) -> frozenset[StoredPicture]:
    """Lists all pictures in the folder now.

    Raises:
        UserError: a folder cannot be read.
    """
    return frozenset(
        one for file, label in picture_names(root, classes) for one in _written(root, label, file)
    )


class StoreMemory:
    """Pictures with which the last update began, and what the last updates took and brought.

    Args:
        path: of the file.

    Raises:
        UserError: the file exists but is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._had: frozenset[StoredPicture] = frozenset()
        self._former: list[tuple[float, float]] = []
        if not path.exists():
            return
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._had = frozenset(StoredPicture(int(row[0]), *map(str, row[1:])) for row in kept["began"])
            self._former = [(float(crop_gpu_s), float(gain)) for crop_gpu_s, gain in kept["updates"]]
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise UserError(
                f"{path}: it does not say which pictures the last update began with ({error}); "
                "remove it, and all pictures are new"
            ) from error

    @property
    def crop_gpu_s(self) -> float | None:
        """GPU-seconds of a picture in an epoch, on average; None before the first update."""
        return fmean(row[0] for row in self._former) if self._former else None

    @property
    def gain(self) -> float | None:
        """Gain in accuracy on held-out pictures, on average; None before the first update."""
        return fmean(row[1] for row in self._former) if self._former else None

    def pictures_since(self, there: frozenset[StoredPicture]) -> list[StoredPicture]:
        """Returns the pictures added since the last update began, oldest first; all where none has begun."""
        return sorted(there - self._had)

    def record_begin(self, there: frozenset[StoredPicture]) -> None:
        """Stores the pictures of an update that has begun.

        Raises:
            UserError: the file cannot be written; this process remembers nevertheless. ``record_update`` too.
        """
        self._had = there
        self._write()

    def record_update(self, crop_gpu_s: float, gain: float) -> None:
        """Stores what an update has taken and brought."""
        self._former = [*self._former, (crop_gpu_s, gain)][-_LAST:]
        self._write()

    def _write(self) -> None:
        kept = {"began": [astuple(one) for one in sorted(self._had)], "updates": self._former}
        write_text_atomic(self._path, json.dumps(kept))


def _written(root: Path, label: str, file: str) -> Iterable[StoredPicture]:
    try:
        yield StoredPicture((root / label / file).stat().st_mtime_ns, label, file)
    except FileNotFoundError:  # deleted since its folder was listed
        return
