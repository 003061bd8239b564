"""Decides whether a request may use a route."""

import math
from dataclasses import dataclass, field
from ipaddress import ip_address

from aiohttp import web

from ekya import __version__
from ekya.fleet.run.live.lender import VERSION_HEADER
from ekya.service.http.access import GUARD_HEADER, FailureLimit, Keys
from ekya.service.http.route import Access


@dataclass(frozen=True, slots=True)
class Guard:
    """Admits requests, by bearer header or by cookie.

    Attributes:
        keys: None where everyone on this machine is admitted.
        metrics_open: whether everyone may read the metrics.
        bearers, logins: wrong tokens in headers, and in the log-in form.
    """

    keys: Keys | None
    metrics_open: bool = False
    bearers: FailureLimit = field(default_factory=FailureLimit)
    logins: FailureLimit = field(default_factory=FailureLimit)

    @property
    def cookie_name(self) -> str:
        """Name of the session's cookie: browsers keep one jar for all services of a host."""
        return "ekya_session" if self.keys is None else f"ekya_session_{self.keys.mark}"

    def check_request(self, request: web.Request, access: Access) -> None:
        """Returns if the request may use a route with this access.

        Raises:
            HTTPUnauthorized, HTTPForbidden, HTTPTooManyRequests: it may not.
        """
        if access is Access.OPEN or (access is Access.METRICS and self.metrics_open):
            return
        if not self._has_bearer(request):
            if not self._has_session(request):
                raise web.HTTPUnauthorized(
                    text="log in, or send the service's token as 'Authorization: Bearer TOKEN'",
                    headers={"WWW-Authenticate": 'Bearer realm="ekya"'},
                )
            if access is Access.CHANGE and GUARD_HEADER not in request.headers:
                raise web.HTTPForbidden(
                    text=f"a change without a bearer token needs the header {GUARD_HEADER}"
                )
        if access is Access.LEND:  # Its header cannot be set by a page of another site either.
            _require_version(request)

    def admits_request(self, request: web.Request) -> bool:
        """Returns whether the page is shown: to a browser that is logged in, or with the bearer token."""
        return self._has_session(request) or self._has_bearer(request)

    def _has_session(self, request: web.Request) -> bool:
        if self.keys is None:
            _require_local_name(request)
            return True
        return self.keys.is_session(request.cookies.get(self.cookie_name, ""))

    def log_in(self, request: web.Request, token: str) -> str | None:
        """Returns the cookie of a new session; None for a wrong token.

        Raises:
            HTTPTooManyRequests: too many wrong tokens came from this address.
        """
        if self.keys is None:
            return None
        address = _limit(request, self.logins)
        if self.keys.is_token(token):
            return self.keys.new_session()
        self.logins.count_failure(address)
        return None

    def _has_bearer(self, request: web.Request) -> bool:
        header = request.headers.get("Authorization", "")
        # Another scheme is that of a proxy, which passes its own log-in on, and no guess of the token.
        if not header.lower().startswith("bearer") or self.keys is None:
            return False
        # Before the comparison: an address that has to wait does not learn whether its token is right.
        address = _limit(request, self.bearers)
        if not self.keys.is_bearer(header):
            self.bearers.count_failure(address)
            return False
        return True


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address is that of this machine for itself alone."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _limit(request: web.Request, failures: FailureLimit) -> str:
    """Returns the address of the client, unless it has to wait."""
    address = request.remote or ""
    # Rounded up: a client that obeys must not be refused once more.
    if wait_s := math.ceil(failures.wait_s(address)):
        raise web.HTTPTooManyRequests(
            text=f"too many wrong tokens from this address; try again in {wait_s} s",
            headers={"Retry-After": f"{wait_s}"},
        )
    return address


def _require_version(request: web.Request) -> None:
    version = request.headers.get(VERSION_HEADER, "another version")
    if version != __version__:
        raise web.HTTPConflict(
            text=f"it has Ekya {__version__}, and who asks has {version}; install the same at both"
        )


def _require_local_name(request: web.Request) -> None:
    """Refuses host names of other sites that resolve to this machine: their pages would read the service."""
    if not is_loopback(request.url.host or ""):
        raise web.HTTPForbidden(text="without a token, this service is called localhost or 127.0.0.1 only")
