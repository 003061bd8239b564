"""Files of a service's validations, with pictures of mistakes: one a retraining, the newest of a stream."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Base64Bytes, TypeAdapter, ValidationError

from ekya.core.errors import NotThereError
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Validation
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import user_errors, write_bytes_atomic

KEPT = 20
"""Number of a stream's newest validations that are kept."""


@dataclass(frozen=True, slots=True)
class KeptValidation:
    """A validation with a JPEG of each of its mistakes."""

    validation: Validation
    pictures: tuple[Base64Bytes, ...]


_FILE = TypeAdapter(KeptValidation)


def keep_validation(folder: RunFolder, stream: StreamId, job: JobId, kept: KeptValidation) -> None:
    """Writes the validation of a retraining, and removes the oldest of the stream.

    Raises:
        UserError: full disk, no permission and the like.
    """
    path = folder.validations(stream)
    with user_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(_file(path, job), _FILE.dump_json(kept))
        # By time: numbers repeat after a kill, since a run goes on from its last snapshot.
        by_age = sorted(_files(path), key=lambda file: file.stat().st_mtime_ns)
        for file in by_age[:-KEPT]:
            file.unlink(missing_ok=True)


def validated_jobs(folder: RunFolder, stream: StreamId) -> dict[JobId, float]:
    """Returns the numbers of the retrainings whose validation is kept, and when each was written.

    The times are seconds since 1970.
    """
    found = {}
    for file in _files(folder.validations(stream)):
        with suppress(FileNotFoundError):  # removed meanwhile
            found[JobId(int(file.stem))] = file.stat().st_mtime
    return found


def read_validation(folder: RunFolder, stream: StreamId, job: JobId) -> KeptValidation:
    """Returns the validation of a retraining.

    Raises:
        NotThereError: it is not kept, or is damaged.
    """
    path = _file(folder.validations(stream), job)
    try:
        return _FILE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise NotThereError(f"of retraining {job} of {stream} no validation is kept") from error


def forget_validations(folder: RunFolder, stream: StreamId) -> bool:
    """Removes the validations of a stream; returns whether there were some.

    Raises:
        UserError: no permission and the like.
    """
    path = folder.validations(stream)
    with user_errors(path):
        files = [*path.iterdir()] if path.is_dir() else []
        for file in files:
            file.unlink(missing_ok=True)
    return bool(files)


def _file(path: Path, job: JobId) -> Path:
    return path / f"{job}.json"


def _files(path: Path) -> list[Path]:
    return [file for file in path.glob("*.json") if file.stem.isdecimal()]
