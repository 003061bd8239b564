"""Compressed tar archives whose content is checked: written in one pass, and read without trust."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pyarrow as pa

from ekya.core.errors import UserError
from ekya.system.files import user_errors

HEADER = "ekya-backup.json"
"""Name of the first file of an archive."""

_CHECKSUMS = "checksums.json"
_LARGEST_RECORD = 16 * 1024 * 1024
"""Bytes of the first or last file of an archive; one that says more is not ours."""

_BLOCK = 1 << 20


class ArchiveWriter:
    """Adds files to an archive; see ``writing_archive``.

    Args:
        tar: open for writing.
    """

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._checksums: dict[str, str] = {}

    def add_file(self, name: str, path: Path, size_bytes: int | None = None) -> None:
        """Adds a file, or the first bytes of it.

        Args:
            name: in the archive; relative, with forward slashes.
            path: of the file.
            size_bytes: that are taken; None for all.

        Raises:
            UserError: it was removed or became shorter meanwhile.
        """
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise UserError(f"{path}: was removed while it was copied; try again") from error
        with file:
            info = tarfile.TarInfo(name)
            # Of the open file: another one may have its name by now.
            of = os.fstat(file.fileno())
            info.size, info.mtime = of.st_size if size_bytes is None else size_bytes, int(of.st_mtime)
            hashing = _Hashing(file)
            try:
                self._tar.addfile(info, cast(IO[bytes], hashing))
            except OSError as error:
                # tarfile raises an OSError without a number where a file ends before its size.
                if error.errno is not None:
                    raise
                raise UserError(f"{path}: was changed while it was copied; try again") from error
        self._checksums[name] = hashing.digest

    def add_record(self, name: str, values: Mapping[str, object]) -> None:
        """Adds a file with JSON values, which has no checksum."""
        content = json.dumps(values).encode()
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self._tar.addfile(info, io.BytesIO(content))

    def add_checksums(self) -> None:
        """Adds the checksums of all files."""
        self.add_record(_CHECKSUMS, self._checksums)


@contextmanager
def writing_archive(path: Path, name: Path, header: Mapping[str, object]) -> Iterator[ArchiveWriter]:
    """Writes an archive; its checksums come last, so that one that was cut off is known.

    Args:
        path: of the archive, new or to be replaced.
        name: that it will have, whose suffix chooses the compression.
        header: JSON values that come first.

    Raises:
        UserError: another suffix, a full disk and the like.
    """
    with (
        user_errors(name),
        _compressed(path, name, "w") as stream,
        # As a stream: a compressed one cannot seek.
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        writer = ArchiveWriter(tar)
        writer.add_record(HEADER, header)
        yield writer
        writer.add_checksums()


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that is there.

    Attributes:
        path: of the file.
    """

    path: Path

    def header(self) -> dict[str, Any]:
        """Returns the JSON values that come first.

        Raises:
            UserError: this is no such archive, or it is damaged.
        """
        with self._opened() as tar:
            return self._first(tar)

    def extract_files(self, folder: Path, belongs: Callable[[str], bool]) -> None:
        """Writes all files below an existing, empty folder, and compares their checksums.

        Names that lead out of the folder, links and devices are refused, and what does not belong there.

        Args:
            folder: empty.
            belongs: whether a file of this name may be written.

        Raises:
            UserError: damaged, cut off or not to be trusted; full disk and the like. A part is written then.
        """
        found: dict[str, str] = {}
        expected: dict[str, Any] | None = None
        with self._opened() as tar:
            self._first(tar)
            while (info := tar.next()) is not None:  # an iteration would begin anew
                if expected is not None:
                    raise self._damaged("there is more behind its end")
                if info.name == _CHECKSUMS:
                    expected = self._record(tar, info)
                    continue
                content = self._content(tar, info)
                path = folder.joinpath(*self._parts(info.name, belongs))
                with user_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # x: a name that comes twice must not replace a file whose checksum is known already.
                    with path.open("xb") as file:
                        found[info.name] = _copied(content, file)
                        # Before the folder gets its name: a power cut must not leave one with all names and
                        # half the content.
                        file.flush()
                        os.fsync(file.fileno())
        if expected is None:
            raise self._damaged("it is cut off")
        for name in sorted(found.keys() | expected.keys()):
            if found.get(name) != expected.get(name):
                raise self._damaged(f"{name} is not what was written")

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(_compressed(self.path, self.path, "r"))
                yield stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            except FileNotFoundError as error:
                raise UserError(f"{self.path}: there is no such file; name a backup") from error
            except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, pa.ArrowException) as error:
                raise self._damaged(str(error)) from error

    def _first(self, tar: tarfile.TarFile) -> dict[str, Any]:
        info = tar.next()
        if info is None or info.name != HEADER:
            raise UserError(f"{self.path}: this is no backup of Ekya's; name one")
        return self._record(tar, info)

    def _record(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> dict[str, Any]:
        if info.size > _LARGEST_RECORD:
            raise self._damaged(f"{info.name} is too large")
        values = json.loads(self._content(tar, info).read())
        if not isinstance(values, dict):
            raise self._damaged(f"{info.name} holds no names and values")
        return values

    def _content(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
        content = tar.extractfile(info) if info.isreg() else None
        if content is None:
            raise self._damaged(f"{info.name} is not a plain file")
        return content

    def _parts(self, name: str, belongs: Callable[[str], bool]) -> tuple[str, ...]:
        # An absolute name differs from its joined parts, of which the first is a slash.
        parts = PurePosixPath(name).parts
        if name != "/".join(parts) or ".." in parts or not belongs(name):
            raise self._damaged(f"{name!r} is no name of a file in it")
        return parts

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self.path}: the backup is damaged ({why}); nothing was restored, use another one")


class _Hashing:
    """Hashes what is read of a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash = file, hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._hash.update(block)
        return block


def _copied(content: IO[bytes], file: IO[bytes]) -> str:
    hashing = _Hashing(content)
    while block := hashing.read(_BLOCK):
        file.write(block)
    return hashing.digest


@contextmanager
def _compressed(path: Path, name: Path, mode: str) -> Iterator[IO[bytes]]:
    """Opens a compressed stream; ``name`` has the suffix."""
    if name.name.endswith(".tar.gz"):
        with gzip.open(path, f"{mode}b", compresslevel=1) if mode == "w" else gzip.open(path, "rb") as stream:
            yield cast(IO[bytes], stream)
    elif name.name.endswith(".tar.zst"):
        opened = pa.output_stream if mode == "w" else pa.input_stream
        with opened(str(path), compression="zstd") as stream:
            yield stream
    else:
        raise UserError(f"{name}: the name of a backup ends with .tar.zst or .tar.gz; choose such a name")
