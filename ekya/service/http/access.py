"""Access to the HTTP server: by a bearer token, or the session of a browser that has shown it.

A browser sends no bearer header with pictures and event streams, so its page logs in with the token and gets
a cookie. A page of another site could have a browser send that cookie, so a request that changes something
also needs a header that such a page cannot set.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ekya.system.token_file import make_token_file, read_token_file

TOKEN_FILE = "token"
"""Name of the file with the token in a service's folder."""

GUARD_HEADER = "X-Ekya-Request"
"""Header of a change without a bearer token. A page of another site cannot set it."""

SESSION_S = 7 * 24 * 3600
"""Time for which a log-in is valid, seconds."""

FAILURES_ALLOWED = 10
"""Wrong tokens from one address within ``FAILURES_WITHIN_S``, after which it has to wait."""

FAILURES_WITHIN_S = 60.0

MOST_ADDRESSES = 1024
"""Number of addresses whose wrong tokens are counted; beyond it the oldest are forgotten."""


def token_of(folder: Path) -> str:
    """Returns the token of a service's folder, and makes one if it has none.

    Only the owner of the file can read it.

    Raises:
        UserError: see ``read_token``; full disk and the like.
    """
    path = folder / TOKEN_FILE
    if not path.exists():
        make_token_file(path)
    return read_token(folder)


def read_token(folder: Path) -> str:
    """Returns the token of a service's folder.

    Raises:
        UserError: there is none, it cannot be read, or the file holds no token.
    """
    return read_token_file(folder / TOKEN_FILE, "remove the file, and the next start makes one")


@dataclass(frozen=True, slots=True)
class Keys:
    """Checks tokens, and makes and checks the cookies of sessions.

    Cookies are signed with a key made from the token: they outlive a restart of the service, and a new token
    ends all sessions. Nothing is kept of them.

    Attributes:
        token: that a client must show.
        now_unix_s: the clock.
    """

    token: str = field(repr=False)
    now_unix_s: Callable[[], float] = time.time

    @property
    def mark(self) -> str:
        """Eight digits by which services are told apart, and from which the token is not found."""
        return hashlib.sha256(f"mark of {self.token}".encode()).hexdigest()[:8]

    def is_token(self, shown: str) -> bool:
        """Returns whether this is the token, in a time that does not depend on where it differs."""
        # As bytes: compare_digest raises for texts that are not ASCII.
        return hmac.compare_digest(_bytes(shown), self.token.encode())

    def is_bearer(self, header: str) -> bool:
        """Returns whether an ``Authorization`` header has the token."""
        scheme, _, shown = header.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(shown.strip())

    def new_session(self) -> str:
        """Returns the value of the cookie of a new session."""
        content = f"{int(self.now_unix_s()) + SESSION_S}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._signature(content)}"

    def is_session(self, cookie: str) -> bool:
        """Returns whether a cookie is of a session that has not ended."""
        content, _, signature = cookie.rpartition(".")
        # First: only what this service has signed is sure to begin with a number.
        if not hmac.compare_digest(_bytes(signature), self._signature(content).encode()):
            return False
        return int(content.partition(".")[0]) > self.now_unix_s()

    def _signature(self, content: str) -> str:
        # The words before the token keep this key apart from other hashes of it, such as the mark.
        key = hashlib.sha256(f"session of {self.token}".encode()).digest()
        return hmac.new(key, _bytes(content), hashlib.sha256).hexdigest()


@dataclass(slots=True)
class FailureLimit:
    """Counts wrong tokens by address, and says how long an address has to wait.

    Attributes:
        now_s: a clock that never goes back.
    """

    now_s: Callable[[], float] = time.monotonic
    _failed_s: dict[str, list[float]] = field(default_factory=dict)

    def wait_s(self, address: str) -> float:
        """Returns after how many seconds the address may try again; 0 for now."""
        failed_s = self._failed_s.get(address, ())
        if len(failed_s) < FAILURES_ALLOWED:
            return 0.0
        return max(0.0, failed_s[-FAILURES_ALLOWED] + FAILURES_WITHIN_S - self.now_s())

    def count_failure(self, address: str) -> None:
        """Counts a wrong token."""
        # Taken out and inserted anew: the first one is then that whose last failure is oldest.
        failed_s = self._failed_s.pop(address, [])
        self._failed_s[address] = [*failed_s, self.now_s()][-FAILURES_ALLOWED:]
        if len(self._failed_s) > MOST_ADDRESSES:
            self._failed_s.pop(next(iter(self._failed_s)))


def _bytes(text: str) -> bytes:
    """Returns the bytes of a header's text, which need not be valid."""
    return text.encode("utf-8", errors="surrogateescape")
