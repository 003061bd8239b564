"""The live page: its shell, its log-in, and the files that it loads."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from ekya import __version__
from ekya.service.http.access import GUARD_HEADER, SESSION_S
from ekya.service.http.endpoints import BODY_S
from ekya.service.http.guard import Guard, cookie_name
from ekya.service.http.routes import Access

_ASSETS = files("ekya.service.http") / "assets"
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "page.css": "text/css; charset=utf-8",
        "page.js": "text/javascript; charset=utf-8",
        "camera.js": "text/javascript; charset=utf-8",
        "charts.js": "text/javascript; charset=utf-8",
        "tools.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
)
"""Files that the page loads, with their media types. They hold no secrets, and the log-in needs some."""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
)
_TEMPLATES = Environment(
    loader=PackageLoader("ekya.service.http", "assets"), autoescape=True, undefined=StrictUndefined
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, eq=False)
class Page:
    """Handlers of the page.

    Attributes:
        name: of the service, for its title.
        guard: who may see it.
    """

    name: str
    guard: Guard

    def add_to(self, app: web.Application) -> None:
        """Adds the page's routes."""
        app.router.add_get("/", self._shell)
        app.router.add_get("/login", self._login_form)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        for name, media in _FILES.items():
            app.router.add_get(f"/static/{name}", _file(name, media))

    async def _shell(self, request: web.Request) -> web.Response:
        if not self.guard.has_session(request):
            raise web.HTTPSeeOther("login")
        return self._html("page.html.j2", login=self.guard.keys is not None, guard_header=GUARD_HEADER)

    async def _login_form(self, request: web.Request) -> web.Response:
        if self.guard.has_session(request):
            raise web.HTTPSeeOther("./")
        return self._html("login.html.j2", problem="")

    async def _login(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(BODY_S):
                token = (await request.post()).get("token", "")
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not come within {BODY_S:g} s") from None
        try:
            cookie = self.guard.log_in(request, token.strip() if isinstance(token, str) else "")
        except web.HTTPTooManyRequests as error:
            return self._html("login.html.j2", error.status, problem=error.text or "")
        if cookie is None:
            return self._html("login.html.j2", 401, problem="this is not the service's token")
        response = web.Response(status=303, headers={"Location": "./"})
        response.set_cookie(
            cookie_name(request),
            cookie,
            max_age=SESSION_S,
            httponly=True,
            samesite="Strict",
            secure="https" in (request.scheme, request.headers.get("X-Forwarded-Proto")),
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self.guard.check(request, Access.CHANGE)
        response = web.Response(status=204)
        response.del_cookie(cookie_name(request), httponly=True, samesite="Strict")
        return response

    def _html(self, template: str, status: int = 200, **values: object) -> web.Response:
        text = _TEMPLATES.get_template(template).render(name=self.name, version=__version__, **values)
        return web.Response(text=text, status=status, content_type="text/html")


async def set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Sets the headers that keep other sites and caches away from every answer."""
    for name, value in _HEADERS.items():
        response.headers[name] = value
    response.headers.setdefault("Cache-Control", "no-store")


def _file(name: str, media: str) -> Handler:
    content = (_ASSETS / name).read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:16]

    async def handle(request: web.Request) -> web.Response:
        headers = {"Content-Type": media, "Cache-Control": "no-cache", "ETag": f'"{tag}"'}
        known = request.if_none_match
        if known is not None and any(one.value == tag for one in known):
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, headers=headers)

    return handle
