"""Removes weights that no one needs any more, and their rows in ``state.sqlite``."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ekya.core.units import ModelVersion, StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.system.files import user_errors


@dataclass(frozen=True, slots=True)
class SpentModels:
    """Models of a stream that no one needs any more.

    Attributes:
        rows: of ``state.sqlite``.
        files: of weights; relative paths, as in the rows.
    """

    rows: tuple[ModelRow, ...]
    files: tuple[str, ...]


def spent_models(
    rows: Sequence[ModelRow],
    files: Collection[str],
    keep: int,
    since: ModelVersion | None = None,
) -> SpentModels:
    """Decides what is removed of a stream's models.

    Weights stay if a row that stays names them, and if they are newer than the newest row, since they are
    about to serve.

    Args:
        rows: of the stream.
        files: numbered files of the stream that are there, as relative paths.
        keep: number of the newest models that stay, of which the last one serves.
        since: this version and later ones stay as well.
    """
    own = sorted(rows, key=lambda row: row.version)
    if not own:
        return SpentModels((), ())
    newest = own[-1].version
    stay = {row.version for row in own[len(own) - min(keep, len(own)) :]}
    spent = tuple(row for row in own if row.version not in stay and (since is None or row.version < since))
    gone = {row.version for row in spent}
    named = {row.path for row in own if row.version not in gone}
    unnamed = (file for file in sorted(files) if file not in named)
    return SpentModels(spent, tuple(file for file in unnamed if int(Path(file).stem) < newest))


def remove_spent(
    folder: RunFolder,
    store: StateStore,
    stream: StreamId,
    keep: int,
    since: ModelVersion | None = None,
    *,
    only_look: bool = False,
) -> tuple[Path, ...]:
    """Removes what ``spent_models`` decides, and returns the paths of the files.

    Args:
        folder, store: of the run.
        stream, keep, since: see ``spent_models``.
        only_look: whether nothing is removed.

    Raises:
        UserError: no permission, a damaged database and the like.
    """
    own = [path for path in folder.models(stream).glob("*.safetensors") if path.stem.isdecimal()]
    spent = spent_models(store.read_models(stream), [*map(folder.relative_path, own)], keep, since)
    paths = tuple(folder.path / file for file in spent.files)
    if not only_look:
        # Rows first: a row never names a file that is not there.
        store.remove_models(spent.rows)
        with user_errors(folder.models(stream)):
            for path in paths:
                path.unlink(missing_ok=True)
    return paths


def remove_all(folder: RunFolder, store: StateStore, stream: StreamId) -> None:
    """Removes all models of a stream that is no longer in the run.

    Raises:
        UserError: no permission, a damaged database and the like.
    """
    # Rows first, as above.
    store.remove_models(store.read_models(stream))
    with user_errors(folder.models(stream)):
        for path in folder.models(stream).glob("*.safetensors"):
            path.unlink(missing_ok=True)
