"""Token of a fleet, with which objects of all its sites can be called."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.files import user_errors

TOKEN_VARIABLE = "EKYA_FLEET_TOKEN"

TOKEN_FILE = Path("~/.config/ekya/fleet_token")

TOKEN_BYTES = 32
"""Random bytes of a token, which is their text in URL-safe base 64."""


def fleet_token(path: Path | None = None) -> str:
    """Returns the token in ``EKYA_FLEET_TOKEN``, or else that of a file, which is made where it is missing.

    Args:
        path: of the file; the default is ``TOKEN_FILE``.

    Raises:
        UserError: others can read the file, or it or the variable holds no token; full disk and the like.
    """
    told = os.environ.get(TOKEN_VARIABLE)
    if told:
        return _checked(told, TOKEN_VARIABLE, "copy the token file of another site into it, or unset it")
    path = (path or TOKEN_FILE).expanduser()
    with user_errors(path):
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read().decode("utf-8", errors="replace")
    if mode & 0o077:
        raise UserError(f"{path}: others can read this token; `chmod 600` it, or remove it for a new one")
    return _checked(content, str(path), "remove the file for a new one, or copy that of another site")


def _make(path: Path) -> None:
    """Writes a new token, unless another process was faster."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(secrets.token_urlsafe(TOKEN_BYTES) + "\n", encoding="ascii")
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()


def _checked(text: str, where: str, remedy: str) -> str:
    token = text.strip()
    # Headers of HTTP carry no other characters.
    if len(token) < TOKEN_BYTES or not token.isascii() or not token.isprintable():
        raise UserError(f"{where}: this is no token of at least {TOKEN_BYTES} characters; {remedy}")
    return token
