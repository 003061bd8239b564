"""Token in a file that only its owner can read, with which calls over HTTP are admitted."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.files import user_errors

TOKEN_BYTES = 32
"""Random bytes of a token, which is their text in URL-safe base 64."""


def make_token_file(path: Path) -> None:
    """Writes a new token, unless another process was faster.

    Raises:
        UserError: full disk, no permission and the like.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with user_errors(path):
        # A process with the same pid may have been killed here, and O_EXCL would refuse its file.
        fresh.unlink(missing_ok=True)
        # No other user can read it at any moment: it has this mode from its first byte on.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            file.flush()
            # Before it gets its name: a power cut must not leave an empty token under it.
            os.fsync(file.fileno())
        # A rename would replace the token with which the other process goes on.
        with suppress(FileExistsError):
            _link(fresh, path)
        fresh.unlink(missing_ok=True)


def read_token_file(path: Path, remedy: str) -> str:
    """Returns the token in a file.

    Args:
        path: of the file.
        remedy: what a user can do if it holds none.

    Raises:
        UserError: there is no file, it cannot be read, or it holds no token.
    """
    with user_errors(path):
        token = path.read_bytes().decode("utf-8", errors="replace").strip()
    # Headers of HTTP carry no other characters.
    if len(token) < TOKEN_BYTES or not token.isascii() or not token.isprintable():
        raise UserError(f"{path}: this is no token of at least {TOKEN_BYTES} characters; {remedy}")
    return token


def _link(fresh: Path, path: Path) -> None:
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        fresh.replace(path)
