"""Downloads published files: an interrupted download is resumed, and only what was published stays.

A file appears under its name once all of it is on disk and has the published checksum. Processes that want
the same file at once wait for the one that downloads it.
"""

import fcntl
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests.utils import select_proxy

from ekya.core.errors import UserError
from ekya.system.files import sync_to_disk, user_errors

Progress = Callable[[int, int | None], None]
"""Is told the bytes so far and in all; None where their number is not known."""

_CONNECT_S, _READ_S = 4.0, 20.0
_TRIES = 5
"""Tries in a row of which none brings a byte."""
_CHUNK = 1 << 16
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file on the web, pinned by what it must contain.

    Attributes:
        url: where it is.
        size_bytes: its length; None if it is not known.
        sha256: its SHA-256 in hexadecimal digits, or the first of them; None if it is not known.
        git_blob: the name under which git stores its content; None if it is not known. One of the two is.
    """

    url: str
    size_bytes: int | None = None
    sha256: str | None = None
    git_blob: str | None = None

    def has_content_of(self, path: Path) -> bool:
        """Returns whether an existing file has the published content."""
        content_sha256, content_git_blob = checksums_of(path)
        return (self.sha256 is not None or self.git_blob is not None) and (
            content_sha256.startswith(self.sha256 or "") and self.git_blob in (None, content_git_blob)
        )

    @property
    def named_checksum(self) -> str:
        """The checksum with its kind before it."""
        if self.sha256 is None:
            return f"git blob {self.git_blob}"
        return f"SHA-256 {self.sha256}" + ("" if len(self.sha256) == _SHA256_DIGITS else "...")


def checksums_of(path: Path) -> tuple[str, str]:
    """Returns the SHA-256 of a file, and the name under which git stores its content."""
    sha256 = hashlib.sha256()
    # Git names what it stores by its SHA-1; nothing is kept secret by it.
    git_blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with user_errors(path), path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            sha256.update(chunk)
            git_blob.update(chunk)
    return sha256.hexdigest(), git_blob.hexdigest()


def download_file(published: PublishedFile, path: Path, progress: Progress = lambda done, of: None) -> None:
    """Downloads a file unless it is there; what an earlier download brought is not fetched again.

    The environment's proxies and certificates (``SSL_CERT_FILE``) are used.

    Args:
        published: the file on the web.
        path: where it is to be.
        progress: is called after each part.

    Raises:
        UserError: there is no network, the server refuses, or the content is another one, in a clause without
            the address; or the disk is full.
    """
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_here(path):
            if path.is_file() and published.has_content_of(path):
                return
            part = path.with_name(f".{path.name}.part")
            resumed = part.is_file()
            _download_rest(published, part, progress)
            if resumed and not published.has_content_of(part):
                # The earlier part may be damaged, as after a power cut.
                part.unlink()
                _download_rest(published, part, progress)
            if not published.has_content_of(part):
                part.unlink()
                raise UserError(
                    f"what came has not the {published.named_checksum} and was not kept; try another network"
                )
            sync_to_disk(part)
            part.replace(path)
            sync_to_disk(path.parent)


@contextmanager
def _only_here(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_rest(published: PublishedFile, part: Path, progress: Progress) -> None:
    """Appends to ``part`` what it lacks; a server that resumes no download sends all of it again."""
    failed = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _request_from(published.url, part, before, progress)
            return
        except requests.RequestException as error:
            brought = part.is_file() and part.stat().st_size > before
            failed = 1 if brought else failed + 1
            # Who cannot reach a server at all is told at once.
            unreachable = isinstance(error, requests.ConnectionError) and not before and not brought
            if unreachable or failed >= _TRIES:
                raise UserError(_why(error)) from error
            time.sleep(0.5 * 2 ** (failed - 1))


def _request_from(url: str, part: Path, begin: int, progress: Progress) -> None:
    # An encoded answer would have other bytes than the file, and so another place to go on from.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
    # requests knows other variables than the rest of the system, of which it reads these first.
    certificates = os.environ.get("SSL_CERT_FILE") or True
    _require_address(url)
    with requests.Session() as session:
        session.verify = certificates
        with session.get(url, headers=headers, stream=True, timeout=(_CONNECT_S, _READ_S)) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                # Nothing is left to send, or the file there is shorter; the checksum tells.
                return
            _require_found(answer)
            goes_on = answer.status_code == requests.codes.partial_content
            done = begin if goes_on else 0
            left = answer.headers.get("Content-Length")
            of = None if left is None else done + int(left)
            with part.open("ab" if goes_on else "wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, of)


def _require_found(answer: requests.Response) -> None:
    """Refuses an answer that will not change.

    Raises:
        UserError: the server refuses.
        requests.HTTPError: it failed, and may not the next time.
    """
    if 400 <= answer.status_code < 500 and answer.status_code != requests.codes.too_many_requests:
        raise UserError(f"the server refuses it: {answer.status_code} {answer.reason}")
    answer.raise_for_status()


def _require_address(url: str) -> None:
    """Refuses a host whose name is not resolved: without a network the resolver may try for half a minute.

    Raises:
        requests.ConnectionError: its name is not resolved in time.
    """
    host = urlsplit(url).hostname or ""
    if select_proxy(url, requests.utils.get_environ_proxies(url)) is not None:
        return  # which resolves it
    found = threading.Event()

    def resolve() -> None:
        with suppress(OSError):
            socket.getaddrinfo(host, None)
            found.set()

    resolver = threading.Thread(target=resolve, daemon=True)
    resolver.start()
    resolver.join(_CONNECT_S)
    if not found.is_set():
        raise requests.ConnectionError(f"the name {host} is not resolved")


def _why(error: requests.RequestException) -> str:
    """Returns the innermost reason, without the objects of libraries that requests puts around it."""
    inner: object = error
    while isinstance(inner, BaseException):
        reason = getattr(inner, "reason", None)
        following = reason if isinstance(reason, BaseException) else (inner.args[0] if inner.args else None)
        if not isinstance(following, BaseException):
            break
        inner = following
    words = str(inner)
    return words.split(": ", 1)[1] if words.startswith("<") and ": " in words else words
