"""Token of a fleet, with which objects of all its sites can be called."""

import asyncio
import hmac
import logging
import os
from pathlib import Path

from aiohttp import web

from ekya.system.files import user_errors
from ekya.system.token_file import make_token_file, read_token_file, require_token_text

TOKEN_VARIABLE = "EKYA_FLEET_TOKEN"

TOKEN_FILE = Path("~/.config/ekya/fleet_token")

WRONG_TOKEN_S = 0.5
"""Time after which a wrong token is refused, so that guessing is slow, seconds."""

_LOG = logging.getLogger(__name__)


def fleet_token(path: Path | None = None) -> str:
    """Returns the token in ``EKYA_FLEET_TOKEN``, or else that of a file, which is made where it is missing.

    Args:
        path: of the file; the default is ``TOKEN_FILE``.

    Raises:
        UserError: others can read the file, or it or the variable holds no token; full disk and the like.
    """
    told = os.environ.get(TOKEN_VARIABLE)
    if told:
        return require_token_text(
            told, TOKEN_VARIABLE, "copy the token file of another site into it, or unset it"
        )
    path = (path or TOKEN_FILE).expanduser()
    if not path.exists():
        with user_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_token_file(path)
    return read_token_file(path, "remove the file for a new one, or copy that of another site", private=True)


async def require_token(request: web.Request, token: str) -> None:
    """Returns if the request shows the token as bearer.

    Raises:
        HTTPUnauthorized: it does not.
    """
    shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    if not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        _LOG.warning("a call from %s with a wrong token", request.remote)
        await asyncio.sleep(WRONG_TOKEN_S)
        raise web.HTTPUnauthorized
