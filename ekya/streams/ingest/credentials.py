"""Keeps the credentials of camera URLs in environment variables.

A URL names variables, as in ``rtsp://${CAM_USER}:${CAM_PASSWORD}@host/live``, and is filled in only where
the camera is opened, in the process of its stream. Files, logs and messages hold the URL with the names. A
URL that holds a literal password is rewritten before it is used.
"""

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

from ekya.core.errors import UserError

HIDDEN = "***"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Everything up to the last @: some cameras' passwords hold an unescaped / or @.
_PARTS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:(?P<login>.*)@)?(?P<rest>[^@]*)", re.DOTALL)
_LOGIN_IN_TEXT = re.compile(r"(?<=:/)(/?)[^\s'\"]*@")
# Many cameras take their login in the path or the query: /video?user=me&pwd=secret.
_TELLING = re.compile(r"(?i)((?:user|usr|login|pass|pwd|token|key|auth|secret)\w*=)[^&\s'\"]+")
_SHORTEST = 3
"""Characters. Masking shorter pieces of a secret would hide half of every sentence."""


def find_variables(text: str) -> tuple[str, ...]:
    """Returns the environment variables that a text names."""
    return tuple(dict.fromkeys(_VARIABLE.findall(text)))


def named_values(text: str) -> dict[str, str]:
    """Returns the values of the environment variables that a text names and that are set."""
    return {name: os.environ[name] for name in find_variables(text) if name in os.environ}


CAMERA = "that part of the camera's URL"


def fill_in_variables(text: str, value: str = CAMERA) -> str:
    """Returns the text with the values of its variables; ``value`` is what they hold, for the message.

    Raises:
        UserError: a variable is not set.
    """
    require_variables(text, value)
    return _VARIABLE.sub(lambda found: os.environ[found[1]], text)


def fill_in_url(url: str, value: str = CAMERA) -> str:
    """Returns a URL with the values of its variables; user and password may hold any character.

    Only a variable that stands for both of them has them as they are in a URL, with the colon.

    Raises:
        UserError: a variable is not set.
    """
    require_variables(url, value)
    parts = _PARTS.fullmatch(url)
    if parts is not None and parts["login"] and ":" in parts["login"]:
        login = _VARIABLE.sub(lambda found: quote(os.environ[found[1]], safe=""), parts["login"])
        url = f"{parts['scheme']}{login}@{parts['rest']}"
    return fill_in_variables(url, value)


def require_variables(text: str, value: str = CAMERA) -> None:
    """Checks that all variables that a text names are set; ``value`` is what they hold, for the message.

    Raises:
        UserError: a variable is not set; the message names the first.
    """
    for name in find_variables(text):
        if name not in os.environ:
            raise UserError(f"the environment variable {name} is not set; set it to {value}")


def mask_passwords(text: str, named: str = "") -> str:
    """Returns a text in which passwords in URLs and the values of the variables in ``named`` are hidden."""
    # The longest first: a piece that is replaced would hide the whole from the search.
    for secret in sorted(_secrets(named), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _TELLING.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    return _LOGIN_IN_TEXT.sub(lambda found: f"{found[1]}{HIDDEN}@", text)


def has_password(url: str) -> bool:
    """Returns whether a URL holds a literal password, token or the like, not only a variable's name."""
    return _password_in_login(url) or _password_in_path(url)


def replace_passwords(url: str, prefix: str) -> tuple[str, Mapping[str, str]]:
    """Replaces literal passwords in a camera's URL by environment variables.

    Args:
        url: URL with or without passwords.
        prefix: prefix of the variables' names.

    Returns:
        The new URL, and the values of its new variables.
    """
    parts = _PARTS.fullmatch(url)
    if parts is None or not has_password(url):
        return url, {}
    values = {}
    login, rest = parts["login"], parts["rest"]
    if login is not None and _password_in_login(url):
        values[f"{prefix}_LOGIN"] = fill_in_url(f"login://{login}@").removeprefix("login://")[:-1]
        login = f"${{{prefix}_LOGIN}}"
    if _password_in_path(url):
        host, slash, path = rest.partition("/")
        values[f"{prefix}_PATH"] = fill_in_variables(path)
        rest = f"{host}{slash}${{{prefix}_PATH}}"
    return f"{parts['scheme']}{'' if login is None else f'{login}@'}{rest}", values


def _password_in_login(url: str) -> bool:
    parts = _PARTS.fullmatch(url)
    if parts is None or not parts["login"]:
        return False
    user, colon, password = parts["login"].partition(":")
    # Without a colon the login may be a token.
    return bool(_VARIABLE.sub("", password if colon else user))


def _password_in_path(url: str) -> bool:
    parts = _PARTS.fullmatch(url)
    return parts is not None and _TELLING.search(_VARIABLE.sub("", parts["rest"])) is not None


def _secrets(named: str) -> Iterator[str]:
    """Yields the variables' values and pieces of them, as they are, URL-decoded and URL-encoded."""
    for name in find_variables(named):
        value = os.environ.get(name, "")
        for piece in (value, *re.split(r"[:/?&=]", value), *re.split(r"[:/?&=_]", value)):
            for form in {piece, unquote(piece), quote(piece, safe="")}:
                if len(form) >= _SHORTEST or form == value != "":
                    yield form
