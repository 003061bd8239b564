"""Copies the run folder of a server on another machine to this one, but for weights, in parts."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ekya.core.errors import UserError
from ekya.system.files import atomic_path

_WEIGHTS = ".safetensors"
"""Suffix of files that stay there: a hundred times as much as all others."""

PART_BYTES = 16 * 1024 * 1024
"""Largest part of a file that is in memory at a time."""


def files_of(folder: Path) -> dict[str, int]:
    """Returns sizes in bytes by path within a folder; weights and links are left out."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.suffix != _WEIGHTS and path.is_file() and not path.is_symlink()
    }


def part_of(folder: Path, file: str, offset: int) -> bytes:
    """Returns a part of a file; empty at its end."""
    with (folder / file).open("rb") as opened:
        opened.seek(offset)
        return opened.read(PART_BYTES)


def collect(files: dict[str, int], part: Callable[[str, int], bytes], target: Path) -> int:
    """Writes files to a folder; those that are there already are left as they are.

    Args:
        files: sizes by path, from ``files_of`` on the other machine.
        part: ``part_of`` there.
        target: the folder; made where it is missing.

    Returns:
        The number of bytes that were copied.

    Raises:
        UserError: full disk, no permission, or a path that leads out of the folder.
    """
    copied = 0
    for file in files:
        pure = PurePosixPath(file)
        if pure.is_absolute() or ".." in pure.parts:
            raise UserError(f"{target}: a server names the file {file}, which is not in its folder")
        path = target / pure
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as opened:
            for content in _parts(file, part):
                opened.write(content)
                copied += len(content)
            opened.flush()
            os.fsync(opened.fileno())
    return copied


def _parts(file: str, part: Callable[[str, int], bytes]) -> Iterator[bytes]:
    offset = 0
    while content := part(file, offset):
        yield content
        offset += len(content)
