"""Folder of a run and the paths of its files."""

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import ModelVersion, StreamId
from ekya.system.files import user_errors

FREE_BYTES_NEEDED = 64 * 1024 * 1024
"""A run is not started on a disk with less free space than this."""

_FOLDERS = ("models", "predictions", "reference", "without_retraining", "student", "figures")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths in one run's folder. Holds no open files."""

    path: Path

    @staticmethod
    def create_numbered(root: Path, name: str) -> "RunFolder":
        """Creates ``root/name``, or ``name-2``, ``name-3``, ... if the name is taken.

        Raises:
            UserError: see ``make_folder``.
        """
        return RunFolder(make_folder(root, name))._with_folders()

    @staticmethod
    def create_or_reuse(root: Path, name: str) -> "RunFolder":
        """Creates ``root/name``, or completes it if it is there.

        Raises:
            UserError: see ``make_folder``.
        """
        require_run_name(name)
        path = root / name
        with user_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path)._with_folders()

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """Opens the folder of an existing run.

        Raises:
            UserError: the folder holds no run.
        """
        folder = RunFolder(path)
        if not folder.fleet.is_file():
            raise UserError(f"{path}: no fleet.yaml, so this is not a run folder; name one under runs/")
        return folder._with_folders()

    @property
    def name(self) -> str:
        """Name of the folder, for display."""
        return self.path.name

    @property
    def fleet(self) -> Path:
        """The fleet file as resolved."""
        return self.path / "fleet.yaml"

    @property
    def journal(self) -> Path:
        """Every event and command, one JSON object a line."""
        return self.path / "journal.jsonl"

    def journal_segment(self, number: int) -> Path:
        """Returns the path of a part of the journal; the parts are numbered from 0, which is ``journal``."""
        return self.journal if number == 0 else self.path / f"journal-{number:06d}.jsonl"

    @property
    def snapshot(self) -> Path:
        """State of the loop when the last window opened; see ``segmented_journal``."""
        return self.path / "snapshot.json"

    @property
    def host(self) -> Path:
        """Costs of a service's work on its machine."""
        return self.path / "host.json"

    @property
    def state(self) -> Path:
        """Streams, windows, models and labels; see ``run_state``."""
        return self.path / "state.sqlite"

    @property
    def profiles(self) -> Path:
        """Predicted and achieved accuracy per configuration; see ``run_tables``."""
        return self.path / "profiles.parquet"

    @property
    def summary(self) -> Path:
        """Metrics of the run, described in ``docs/summary.md``."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def inputs(self) -> Path:
        """SHA-256 of what a finished run of a comparison was made of; see ``play_once``."""
        return self.path / "inputs.sha256"

    @property
    def figures(self) -> Path:
        """Folder of the figures."""
        return self.path / "figures"

    @property
    def starts(self) -> Path:
        """When a service was started; see ``wall_clock``."""
        return self.path / "starts.jsonl"

    @property
    def answers_folder(self) -> Path:
        """Folder of what the sinks of a service's answers have confirmed."""
        return self.path / "answers"

    def models(self, stream: StreamId) -> Path:
        """Returns the folder of a stream's weights."""
        return self.path / "models" / stream

    def exemplars(self, stream: StreamId) -> Path:
        """Returns the path of a stream's exemplars, and creates their folder.

        Raises:
            UserError: full disk, no permission and the like.
        """
        folder = self.path / "exemplars"
        with user_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{stream}.safetensors"

    def validations(self, stream: StreamId) -> Path:
        """Returns the folder of a stream's validations, of a service; see ``validation_files``."""
        return self.path / "validations" / stream

    def predictions(self, stream: StreamId) -> Path:
        """Returns the path of a stream's predictions, one row per frame that arrived; see ``run_tables``."""
        return self.path / "predictions" / f"{stream}.parquet"

    def hours(self, stream: StreamId) -> Path:
        """Returns the folder of a stream's predictions by hour, of a service; see ``hour_tables``."""
        return self.path / "predictions" / stream

    def reference(self, stream: StreamId) -> Path:
        """Returns the path of a stream's reference labels, one row per frame; see ``run_tables``."""
        return self.path / "reference" / f"{stream}.parquet"

    def without_retraining(self, stream: StreamId) -> Path:
        """Returns the path of the base model's predictions on sampled frames; same columns."""
        return self.path / "without_retraining" / f"{stream}.parquet"

    def student_alone(self, stream: StreamId) -> Path:
        """Returns the path of the adapted models' own predictions on scored frames; same columns."""
        return self.path / "student" / f"{stream}.parquet"

    def model(self, stream: StreamId, version: ModelVersion) -> Path:
        """Returns the path of a model's weights, and creates the stream's folder.

        Raises:
            UserError: full disk, no permission and the like.
        """
        folder = self.models(stream)
        with user_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{version}.safetensors"

    def relative_path(self, path: Path) -> str:
        """Returns the path of a file in ``state.sqlite``, relative so that the folder can be moved."""
        return path.relative_to(self.path).as_posix()

    def _with_folders(self) -> "RunFolder":
        for folder in _FOLDERS:
            with user_errors(self.path):
                (self.path / folder).mkdir(exist_ok=True)
        return self


def make_folder(root: Path, name: str) -> Path:
    """Creates a folder ``root/name``, or ``name-2``, ``name-3``, ... if the name is taken.

    Raises:
        UserError: as ``require_room``. No folder ``root/name`` is left behind then.
    """
    require_room(root, name)
    for number in itertools.count(1):
        path = root / (name if number == 1 else f"{name}-{number}")
        with user_errors(path):
            try:
                # Without exist_ok: of two runs that begin at once each gets a folder of its own.
                path.mkdir()
            except FileExistsError:
                continue
        return path
    raise AssertionError("unreachable: the numbers do not end")


def require_room(root: Path, name: str) -> None:
    """Refuses a place in which no folder ``root/name`` can be made; makes ``root``.

    Raises:
        UserError: no permission, a disk with less than ``FREE_BYTES_NEEDED``, or a name that cannot name a
            folder.
    """
    _require_plain(name, "run name")
    with user_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise PermissionError(13, "not writable")
    free = shutil.disk_usage(root).free
    if free < FREE_BYTES_NEEDED:
        raise UserError(
            f"{root}: only {free // 2**20} MiB are free and a run needs {FREE_BYTES_NEEDED // 2**20}; "
            "free some space or choose another folder"
        )


def remove_later_weights(folder: Path, newest: int) -> None:
    """Removes files of weights with a higher number: a run that was killed had not recorded them yet.

    The next weights of that number would be taken for written already.

    Raises:
        UserError: no permission and the like.
    """
    with user_errors(folder):
        for path in folder.glob("*.safetensors"):
            if path.stem.isdecimal() and int(path.stem) > newest:
                path.unlink(missing_ok=True)


def check_stream_name(stream: StreamId) -> None:
    """Refuses a stream id that cannot be a file name, such as ``../cam``.

    Raises:
        UserError: names the id and the allowed characters.
    """
    _require_plain(stream, "stream id")


def require_run_name(name: str) -> None:
    """Refuses a name that cannot name a run's folder, such as ``../runs``.

    Raises:
        UserError: names it and the allowed characters.
    """
    _require_plain(name, "run name")


def plain_name(text: str) -> str:
    """Returns the text with ``-`` for every character that is not allowed in a run's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)


def _require_plain(name: str, what: str) -> None:
    # A dot in front would hide it, a dash would be taken for an option.
    plain = name and name[0] not in ".-" and all(c.isalnum() or c in "._-" for c in name) and len(name) <= 100
    if not plain:
        raise UserError(
            f"{what} {name!r}: use letters, digits, '-', '_' and '.' only, not '.' or '-' first, "
            "and at most 100 of them"
        )
