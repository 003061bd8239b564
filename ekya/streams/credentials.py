"""Credentials of a camera's URL: they travel in environment variables and stand nowhere else.

A URL names variables, as in ``rtsp://${CAM_USER}:${CAM_PASSWORD}@host/live``, and is filled in where
the camera is opened, in the process of its stream. What is written down, logged or handed on is the
URL with the names. One that holds a password as such is rewritten before anything else sees it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from ekya.errors import UserError

HIDDEN = "***"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Everything up to the last @: some cameras' passwords hold a / or an @ that nobody has escaped.
_PARTS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?:(?P<login>.*)@)?(?P<rest>[^@]*)", re.DOTALL)
_LOGIN_IN_TEXT = re.compile(r"(?<=:/)(/?)[^\s'\"]*@")
# Many cameras take their login in the path or the query: /video?user=me&pwd=secret.
_TELLING = re.compile(r"(?i)((?:user|usr|login|pass|pwd|token|key|auth|secret)\w*=)[^&\s'\"]+")
_SHORTEST = 3
"""Pieces of a secret that are shorter would hide half of every sentence."""


def variables_in(text: str) -> tuple[str, ...]:
    """The environment variables that a text names."""
    return tuple(dict.fromkeys(_VARIABLE.findall(text)))


def filled_in(text: str) -> str:
    """The text with the values of its variables.

    Raises:
        UserError: one of them is not set.
    """
    require_set(text)
    return _VARIABLE.sub(lambda found: os.environ[found[1]], text)


def require_set(text: str) -> None:
    """Refuses a text that names a variable which is not set.

    Raises:
        UserError: names the first.
    """
    for name in variables_in(text):
        if name not in os.environ:
            raise UserError(
                f"the environment variable {name} is not set; set it to that part of the camera's URL"
            )


def masked(text: str, named: str = "") -> str:
    """A text without the passwords of URLs in it, and without what the variables of ``named`` hold."""
    for secret in sorted(_secrets(named), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _TELLING.sub(lambda found: f"{found[1]}{HIDDEN}", text)
    return _LOGIN_IN_TEXT.sub(lambda found: f"{found[1]}{HIDDEN}@", text)


def has_password(url: str) -> bool:
    """Whether a URL holds a password, a token or the like, and not only a variable's name."""
    return _password_in_login(url) or _password_in_path(url)


def without_passwords(url: str, prefix: str) -> tuple[str, Mapping[str, str]]:
    """The same camera's URL with names of variables where there were passwords.

    Args:
        url: with or without.
        prefix: of the variables' names.

    Returns:
        The URL, and the values of its new variables.
    """
    parts = _PARTS.fullmatch(url)
    if parts is None or not has_password(url):
        return url, {}
    values = {}
    login, rest = parts["login"], parts["rest"]
    if login is not None and _password_in_login(url):
        values[f"{prefix}_LOGIN"] = filled_in(login)
        login = f"${{{prefix}_LOGIN}}"
    if _password_in_path(url):
        host, slash, path = rest.partition("/")
        values[f"{prefix}_PATH"] = filled_in(path)
        rest = f"{host}{slash}${{{prefix}_PATH}}"
    return f"{parts['scheme']}{'' if login is None else f'{login}@'}{rest}", values


def _password_in_login(url: str) -> bool:
    parts = _PARTS.fullmatch(url)
    if parts is None or not parts["login"]:
        return False
    user, colon, password = parts["login"].partition(":")
    return bool(_VARIABLE.sub("", password if colon else user))


def _password_in_path(url: str) -> bool:
    parts = _PARTS.fullmatch(url)
    return parts is not None and _TELLING.search(_VARIABLE.sub("", parts["rest"])) is not None


def _secrets(named: str) -> Iterator[str]:
    """Values and their pieces, as they are and as a decoder of URLs gives them back."""
    for name in variables_in(named):
        value = os.environ.get(name, "")
        for piece in (value, *re.split(r"[:/?&=]", value), *re.split(r"[:/?&=_]", value)):
            for form in {piece, unquote(piece)}:
                if len(form) >= _SHORTEST or form == value != "":
                    yield form
