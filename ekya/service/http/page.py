"""The live page: its texts and numbers for the templates, its log-in, and the files that it loads."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from types import MappingProxyType
from typing import TypeVar

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from ekya import __version__
from ekya.core.errors import NotThereError
from ekya.core.weights import Validation
from ekya.service.http.access import GUARD_HEADER, SESSION_S
from ekya.service.http.backend import Backend
from ekya.service.http.bodies import models_of
from ekya.service.http.endpoints import BODY_S
from ekya.service.http.guard import Guard
from ekya.service.http.route import Access
from ekya.service.status import AuditedAccuracy, CameraStatus, ServiceStatus

UNKNOWN = "–"

OFF = "off"
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "ok": "ok",
        "stale": "warn",
        "unlabelled": "warn",
        "behind": "warn",
        "restarting": "warn",
        "lost": "bad",
        "set aside": "bad",
    }
)
"""Colours of states; each has a word that says the same."""

_NAMED = 2
"""Number of cameras that are named where some are meant."""

_MOST_DIGITS = 18
"""Digits of the largest number of a retraining that is looked up."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures over all cameras, as texts.

    Attributes:
        mean: accuracy, weighted.
        healthy, ill: number of cameras that are well, and names of the others.
        retrained, retraining: number and names of cameras that are retrained.
        analysed: part of the frames that λ selected.
        inference_milli, retraining_milli: shares of all cameras.
    """

    mean: str
    healthy: str
    ill: str
    retrained: int
    retraining: str
    analysed: str
    inference_milli: int
    retraining_milli: int


@dataclass(frozen=True, slots=True)
class ConfusionRow:
    """A class in a confusion: number of its objects by answer, and the part that was right, as text."""

    name: str
    counts: tuple[int, ...]
    recall: str


def fleet_overview(status: ServiceStatus) -> Overview:
    """Returns the figures over all cameras."""
    cameras = status.cameras
    known = [(one.weight, one.accuracy) for one in cameras if one.state == "serving"]
    weighted = [(weight, accuracy) for weight, accuracy in known if accuracy is not None]
    weight = sum(weight for weight, _ in weighted)
    on = [one for one in cameras if kind_of(one) != OFF]
    ill = [one.id for one in on if kind_of(one) != "ok"]
    retrained = [one.id for one in cameras if one.retraining is not None]
    due = _sum(cameras, lambda one: one.frames_due)
    return Overview(
        percent(sum(weight * accuracy for weight, accuracy in weighted) / weight if weight else None),
        f"{len(on) - len(ill)} of {len(on)}",
        _some_of(ill, "all well"),
        len(retrained),
        "labels are being made" if status.preparing else _some_of(retrained, "no camera"),
        percent(_sum(cameras, lambda one: one.frames_analysed) / due if due else None),
        _sum(cameras, lambda one: one.inference_share_milli),
        _sum(cameras, lambda one: one.retraining_share_milli),
    )


def facts_of(camera: CameraStatus) -> dict[str, str]:
    """Returns what is known of a camera, by name."""
    counts = camera.retrainings
    by = f"at {camera.resolution} px" if camera.resolution else "by the golden detector"
    frames = "every frame" if camera.every == 1 else f"one frame of {camera.every}"
    share = percent(camera.frames_analysed / camera.frames_due) if camera.frames_due else UNKNOWN
    inference = f"{gpus(camera.inference_share_milli)} GPU, {frames} {by}"
    substream = {"Analysed stream": "the substream, url_detect"}
    return {
        **(substream if camera.analysed_url == "url_detect" else {}),
        "Accuracy": percent(camera.accuracy),
        "Audited accuracy": "not known yet" if camera.audited is None else _audit(camera.audited),
        "Model": f"version {camera.model_version}{', frozen' if camera.frozen else ''}",
        "Inference": "none" if camera.every is None else inference,
        "Retraining": f"{gpus(camera.retraining_share_milli)} GPU" if camera.retraining else "none now",
        "Frames analysed": f"{camera.frames_analysed} of {camera.frames_due} ({share})",
        "Scene changes": str(camera.drifts),
        "Retrainings": f"{counts.served} served, {counts.kept} kept the model, {counts.failed} failed",
    }


def window_text(status: ServiceStatus) -> str:
    """Returns which window is open, and when it ends."""
    if status.window < 0:
        return "Starting …"
    left_s = max(0, round((status.window_ends_us - status.now_us) / 1e6))
    return f"Window {status.window} · ends in {left_s // 60}:{left_s % 60:02d}"


def window_part(status: ServiceStatus) -> float:
    """Returns the part of the window that is over, in [0, 1]."""
    whole_us = status.window_ends_us - status.window_opened_us
    over_us = status.now_us - status.window_opened_us
    return round(min(1.0, max(0.0, over_us / whole_us)), 4) if whole_us > 0 else 0.0


def confusion_of(validation: Validation, counts: Sequence[Sequence[int]]) -> list[ConfusionRow]:
    """Returns the rows of a confusion, without the classes of which there was no object.

    Args:
        validation: that has it.
        counts: its ``before`` or ``after``.
    """
    return [
        ConfusionRow(name, tuple(row), percent(row[at] / sum(row)) if name else "")
        for at, (name, row) in enumerate(zip(validation.classes, counts, strict=True))
        if sum(row)
    ]


def percent(part: float | None) -> str:
    """Returns a part in percent."""
    return UNKNOWN if part is None else f"{100 * part:.1f}%"


def gpus(milli: float) -> str:
    """Returns a share in GPUs."""
    return f"{milli / 1000:.2f}"


def state_of(camera: CameraStatus) -> str:
    """Returns the word for how a camera is."""
    word = camera.health if camera.state == "serving" else camera.state
    return "OK" if word == "ok" else word.capitalize()


def kind_of(camera: CameraStatus) -> str:
    """Returns the colour of that word: ``ok``, ``warn``, ``bad`` or ``off``."""
    return _KINDS.get(camera.health if camera.state == "serving" else camera.state, OFF)


def utc(unix_s: float) -> str:
    """Returns a time for browsers in which no script tells the local one."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%d %b %H:%M UTC")


FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {one.__name__: one for one in (percent, gpus, state_of, kind_of, utc)}
)
"""Functions that templates may use, by name."""


def _audit(audited: AuditedAccuracy) -> str:
    low, high = percent(audited.low), percent(audited.high)
    return f"{percent(audited.accuracy)} ({low} to {high}, {audited.frames} frames)"


def _some_of(names: list[str], none: str) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more or none


def _sum(cameras: Sequence[CameraStatus], of: Callable[[CameraStatus], _Number]) -> _Number:
    return sum(map(of, cameras))


_ASSETS = files("ekya.service.http") / "assets"
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "page.css": "text/css; charset=utf-8",
        "login.js": "text/javascript; charset=utf-8",
        "page.js": "text/javascript; charset=utf-8",
        "charts.js": "text/javascript; charset=utf-8",
        "tools.js": "text/javascript; charset=utf-8",
        "idiomorph.min.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
)
"""Files that the page loads, with their media types. They hold no secrets, and the log-in needs some."""

# No inline code, no other origin, no frame: a text that got unescaped into a page would run nothing.
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
        if not self.guard.admits_request(request):
            # Relative, here and below: a proxy may serve the page under a path of its own.
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
            return "overview.html.j2", {**shown, "all": fleet_overview(status)}
        camera = status.camera(name)
        of_camera = {
            "camera": camera,
            "facts": facts_of(camera),
            "retrainings": self.backend.retrainings(name),
            "models": models_of(self.backend.kept_models(name), camera.model_version),
        }
        return "camera.html.j2", {**shown, **of_camera}

    async def _validation(self, request: web.Request) -> web.Response:
        self.guard.check_request(request, Access.READ)
        camera, job = request.query.get("camera", ""), request.query.get("job", "")
        # Python refuses to read more than 4300 digits, and the name of a file has at most 255 bytes.
        if not job.isdecimal() or len(job) > _MOST_DIGITS:
            raise web.HTTPBadRequest(text="job: give the number of a retraining")
        found = (await asyncio.to_thread(self.backend.read_validation, camera, int(job))).validation
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
        if self.guard.admits_request(request):
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
            # A proxy that ends TLS says so in this header. A forged one only makes the cookie stricter.
            secure="https" in (request.scheme, request.headers.get("X-Forwarded-Proto")),
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self.guard.check_request(request, Access.CHANGE)
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
    # Only a default: browsers may keep files of the page, and ask by their tag whether they still hold.
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
