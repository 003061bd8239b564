"""The live page: what it shows, its log-in, and the files that it loads."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from ekya import __version__
from ekya.core.errors import NotThereError
from ekya.service.http.access import GUARD_HEADER, SESSION_S
from ekya.service.http.backend import Backend
from ekya.service.http.bodies import models_of
from ekya.service.http.endpoints import BODY_S
from ekya.service.http.guard import Guard
from ekya.service.http.routes import Access
from ekya.service.http.views import (
    FILTERS,
    confusion_of,
    facts_of,
    overview,
    window_part,
    window_text,
)

_ASSETS = files("ekya.service.http") / "assets"
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "page.css": "text/css; charset=utf-8",
        "page.js": "text/javascript; charset=utf-8",
        "charts.js": "text/javascript; charset=utf-8",
        "tools.js": "text/javascript; charset=utf-8",
        "idiomorph.min.js": "text/javascript; charset=utf-8",
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
    loader=PackageLoader("ekya.service.http", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(FILTERS)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, eq=False)
class Page:
    """Handlers of the page, which is rendered whole; its script asks again once a second.

    Attributes:
        backend: the service.
        name: of the service, for its title.
        guard: who may see it.
    """

    backend: Backend
    name: str
    guard: Guard

    def add_to(self, app: web.Application) -> None:
        """Adds the page's routes."""
        app.router.add_get("/", self._page)
        app.router.add_get("/validation", self._validation)
        app.router.add_get("/login", self._login_form)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        for name, media in _FILES.items():
            app.router.add_get(f"/static/{name}", _file(name, media))

    async def _page(self, request: web.Request) -> web.Response:
        if not self.guard.has_session(request):
            raise web.HTTPSeeOther("login")
        camera = request.query.get("camera")
        try:
            template, values = await asyncio.to_thread(self._shown, camera)
        except NotThereError:
            raise web.HTTPSeeOther("./") from None
        frame = {"login": self.guard.keys is not None, "guard_header": GUARD_HEADER}
        return self._html(template, {**frame, **values})

    def _shown(self, name: str | None) -> tuple[str, Mapping[str, object]]:
        """Returns template and values of the page of a camera, or of all cameras."""
        status = self.backend.status()
        shown = {
            "status": status,
            "window_text": window_text(status),
            "window_part": window_part(status),
        }
        if name is None:
            return "overview.html.j2", {**shown, "all": overview(status)}
        camera = status.camera(name)
        of_camera = {
            "camera": camera,
            "facts": facts_of(camera),
            "retrainings": self.backend.retrainings(name),
            "models": models_of(self.backend.models(name), camera.model_version),
        }
        return "camera.html.j2", {**shown, **of_camera}

    async def _validation(self, request: web.Request) -> web.Response:
        self.guard.check(request, Access.READ)
        camera, job = request.query.get("camera", ""), request.query.get("job", "")
        if not job.isdecimal():
            raise web.HTTPBadRequest(text="job: give the number of a retraining")
        found = (await asyncio.to_thread(self.backend.validation, camera, int(job))).validation
        values = {
            "camera": camera,
            "job": job,
            "classes": found.classes,
            "before": confusion_of(found, found.before),
            "after": confusion_of(found, found.after),
            "mistakes": found.mistakes,
        }
        return self._html("validation.html.j2", values)

    async def _login_form(self, request: web.Request) -> web.Response:
        if self.guard.has_session(request):
            raise web.HTTPSeeOther("./")
        return self._html("login.html.j2", {"problem": ""})

    async def _login(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(BODY_S):
                token = (await request.post()).get("token", "")
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not come within {BODY_S:g} s") from None
        except (ValueError, LookupError):  # no text, or of a charset that there is not
            raise web.HTTPBadRequest(text="the form cannot be read; send the token as text") from None
        try:
            cookie = self.guard.log_in(request, token.strip() if isinstance(token, str) else "")
        except web.HTTPTooManyRequests as error:
            return self._html("login.html.j2", {"problem": error.text or ""}, error.status)
        if cookie is None:
            return self._html("login.html.j2", {"problem": "this is not the service's token"}, 401)
        response = web.Response(status=303, headers={"Location": "./"})
        response.set_cookie(
            self.guard.cookie_name,
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
        response.del_cookie(self.guard.cookie_name, httponly=True, samesite="Strict")
        return response

    def _html(self, template: str, values: Mapping[str, object], status: int = 200) -> web.Response:
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
