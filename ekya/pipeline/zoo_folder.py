"""The zoo of retrained models on disk: weights with checksums, and an index that is written atomically."""

import fcntl
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.weights import KeptModel
from ekya.pipeline.discover_classes import fleet_classes
from ekya.planning.adaptation.kept_models import mark_used
from ekya.results.storage.run_folder import RunFolder, remove_later_weights
from ekya.system.files import link_atomic, user_errors, write_bytes_atomic

_LOG = logging.getLogger(__name__)

INDEX = "zoo.json"
_LOCK = "lock"
_VERSION = 1


class ForgottenError(UserError):
    """The file of a kept model was removed, since it was forgotten, or never written."""


@dataclass(frozen=True, slots=True)
class ZooKind:
    """Properties that the models of a zoo share: others cannot serve in its place.

    Attributes:
        architecture, classes, resolution: of the edge models, the fleet, and the images that they learn.
            A model may know only the first of the classes.
    """

    architecture: str
    classes: tuple[str, ...]
    resolution: int


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A kept model and its file.

    Attributes:
        size, sha256: of the file.
    """

    model: KeptModel
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ZooIndex:
    """Content of a zoo's index.

    Attributes:
        files: of the kept models, the least recently used first.
    """

    version: int
    kind: ZooKind
    files: tuple[KeptFile, ...]


_INDEX = TypeAdapter(ZooIndex)


class ZooFolder:
    """Kept models in a folder. Changed by one thread, and looked up by others; used by one run.

    Args:
        path: of the folder, which exists.
        index: of what it holds.
        lock: open file whose lock keeps other runs away.
    """

    def __init__(self, path: Path, index: ZooIndex, lock: IO[bytes]) -> None:
        self._path, self._kind, self._lock = path, index.kind, lock
        self._files = {file.model.number: file for file in index.files}
        self._damaged: set[int] = set()

    @property
    def models(self) -> tuple[KeptModel, ...]:
        """The kept models, the least recently used first."""
        return tuple(file.model for file in self._files.values())

    def keep_model(self, model: KeptModel, weights: Path, forget: tuple[int, ...]) -> None:
        """Adds a model, and removes others; the file of its weights is linked where that is possible.

        Raises:
            UserError: full disk, no permission and the like.
        """
        path = weights_of(self._path, model.number)
        link_atomic(path, weights)
        # Read back, so that the checksum is of what is stored.
        data = path.read_bytes()
        # A new key is the last one, that of the most recently used model.
        self._files.pop(model.number, None)
        self._files[model.number] = KeptFile(model, len(data), hashlib.sha256(data).hexdigest())
        for number in forget:
            self._files.pop(number, None)
        self._write()
        # Only now: an index never names a file that is not there.
        for number in forget:
            weights_of(self._path, number).unlink(missing_ok=True)

    def record_use(self, number: int) -> None:
        """Records that a model serves again: it is the last to be removed."""
        order = mark_used(self.models, number)
        self._files = {model.number: self._files[model.number] for model in order}
        self._write()

    def model(self, number: int) -> KeptModel | None:
        """Returns what is known of a kept model; None if it is kept no more."""
        file = self._files.get(number)
        return None if file is None else file.model

    def file(self, number: int) -> Path:
        """Returns the path of a model's weights."""
        return weights_of(self._path, number)

    def reader(self, number: int) -> Callable[[], bytes] | None:
        """Returns what reads a model's weights in any process; None if it is kept no more."""
        file = self._files.get(number)
        return None if file is None else partial(checked, self.file(number), file.sha256)

    def read(self, number: int) -> bytes | None:
        """Returns a model's weights; None if its file is missing or damaged, which is warned of once."""
        file = self._files.get(number)
        if file is None or number in self._damaged:
            return None
        try:
            return checked(self.file(number), file.sha256)
        except UserError as error:
            self._damaged.add(number)
            _LOG.warning("%s; this kept model is left out", error)
            return None

    def close(self) -> None:
        """Lets other runs use the folder."""
        self._lock.close()

    def _write(self) -> None:
        index = ZooIndex(_VERSION, self._kind, tuple(self._files.values()))
        write_bytes_atomic(self._path / INDEX, _INDEX.dump_json(index))


def open_zoo(fleet: FleetConfig, run: RunFolder) -> ZooFolder | None:
    """Returns the zoo of a run, which is to be closed; None where the fleet keeps no models.

    A folder that cannot be used is left as it is, with a warning, and the run keeps its models in its own.

    Raises:
        UserError: no permission and the like.
    """
    if fleet.kept is None:
        return None
    kind = ZooKind(fleet.edge.model, fleet_classes(fleet), fleet.edge.resolution)
    if fleet.kept.folder is not None:
        zoo = _opened(fleet.kept.folder, kind)
        if isinstance(zoo, ZooFolder):
            return zoo
        _LOG.warning("zoo.folder: %s: %s; this run keeps its models in %s", fleet.kept.folder, zoo, run.zoo)
    with user_errors(run.zoo):
        run.zoo.mkdir(exist_ok=True)
    zoo = _opened(run.zoo, kind)
    if isinstance(zoo, ZooFolder):
        remove_later_weights(run.zoo, max((model.number for model in zoo.models), default=0))
        return zoo
    raise UserError(f"{run.zoo}: {zoo}; remove the folder")


def read_index(folder: Path) -> ZooIndex | None:
    """Returns the index of a zoo; None if the folder has none.

    Raises:
        UserError: it is damaged, or of another version of Ekya.
    """
    path = folder / INDEX
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name the folder of a zoo") from error
    try:
        index = _INDEX.validate_json(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UserError(
            f"{path}: is damaged ({problem['msg']}); remove the folder, or name another"
        ) from None
    if index.version != _VERSION:
        raise UserError(f"{path}: is of version {index.version} and not {_VERSION}; name another folder")
    return index


def weights_of(folder: Path, number: int) -> Path:
    """Returns the path of a kept model's weights."""
    return folder / f"{number}.safetensors"


def checked(path: Path, sha256: str) -> bytes:
    """Returns the content of a file of weights.

    Raises:
        ForgottenError: there is no such file.
        UserError: it cannot be read, or is not what was written.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ForgottenError(f"{path}: is missing") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(f"{path}: is damaged: its checksum is not that of the index")
    return data


def _opened(folder: Path, kind: ZooKind) -> ZooFolder | str:
    """Returns the zoo in a folder, or the reason why it cannot be used."""
    try:
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        return f"it cannot be written ({error.strerror})"
    problem: str | None = None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        index = read_index(folder) or ZooIndex(_VERSION, kind, ())
        problem = _other(index.kind, kind)
    except BlockingIOError:
        problem = "another run uses it"
    except OSError as error:
        problem = f"it cannot be locked ({error.strerror})"
    except UserError as error:
        problem = str(error)
    if problem is not None:
        lock.close()
        return problem
    present = []
    for file in index.files:
        path = weights_of(folder, file.model.number)
        # By size only; the checksum is compared when a model is read.
        with suppress(OSError):
            if path.stat().st_size == file.size:
                present.append(file)
                continue
        _LOG.warning("%s: is missing or cut off; this kept model is left out", path)
    return ZooFolder(folder, ZooIndex(_VERSION, kind, tuple(present)), lock)


def _other(known: ZooKind, kind: ZooKind) -> str | None:
    """Returns how a zoo's models differ from those of the fleet; None if they do not.

    Classes that were added to the fleet since are its last ones. Models without them serve like those of
    streams that have not met them yet.
    """
    first = kind.classes[: len(known.classes)]
    for key, of_zoo, of_fleet in (
        ("edge.model", known.architecture, kind.architecture),
        ("classes", ", ".join(known.classes), ", ".join(kind.classes if first != known.classes else first)),
        ("edge.resolution", known.resolution, kind.resolution),
    ):
        if of_zoo != of_fleet:
            return f"its models are of {key} {of_zoo}, and the fleet's of {of_fleet}"
    return None
