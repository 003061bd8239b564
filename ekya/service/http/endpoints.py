"""Handlers of the API's routes: check access and body, ask the backend in a thread, answer in JSON."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from ekya.config.fleet_sections import StreamConfig
from ekya.config.keys_in_words import describe_first_problem
from ekya.core.errors import NotThereError, UserError
from ekya.core.unique_tuple import require_distinct_keys
from ekya.fleet.run.live.lender import DIGEST_HEADER
from ekya.service.http.backend import Backend
from ekya.service.http.bodies import Note
from ekya.service.http.events import Events, StreamedMoment, newest_of
from ekya.service.http.guard import Guard
from ekya.service.http.openapi import openapi_document
from ekya.service.http.route import JSON, Access, Call, Route
from ekya.service.http.routes import METRICS, ROUTES
from ekya.service.status import ServiceStatus
from ekya.streams.ingest.credentials import mask_passwords

MOST_BYTES = 64 * 1024
"""Size of a request's body."""

BODY_S = 10.0
"""Time within which a body must have come, seconds."""

HEALTH_S = 5.0
"""Time within which a healthy service tells its status, seconds."""

READERS = 4
"""Threads that read the backend."""

CHANGERS = 4
"""Threads that change the service, and so the number of changes at a time."""

LENDERS = 4
"""Threads that answer services that borrow."""

MOST_UPLOAD_BYTES = 1 << 30
"""Size of a training that is sent."""

MOST_CHANGES = 16
"""Number of changes that are carried out or wait."""

METRICS_TYPE = f"{METRICS}; version=0.0.4; charset=utf-8"
"""Media type of the metrics with the version of their format."""

_TOLD_HEADERS = ("Allow", "Retry-After", "WWW-Authenticate")
_STATUS: TypeAdapter[ServiceStatus] = TypeAdapter(ServiceStatus)
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True, eq=False)
class Endpoints:
    """Handlers of all routes of the API.

    Attributes:
        backend: the service.
        guard: who may use them.
    """

    backend: Backend
    guard: Guard
    _readers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READERS, thread_name_prefix="http-read")
    )
    # Pictures may keep the readers waiting.
    _health: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="http-health")
    )
    # Pricing what could be lent takes a plan of the scheduler.
    _lends: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(LENDERS, thread_name_prefix="http-lend")
    )
    _changers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(CHANGERS, thread_name_prefix="http-change")
    )
    _changes: int = 0
    _events: Events = field(init=False)

    def __post_init__(self) -> None:
        self._events = Events(lambda: self._in(self._readers, self._moment))

    def add_to(self, app: web.Application) -> None:
        """Adds every route, and what ends with the server."""
        own = {"events": self._events.answer_stream, "healthz": self._healthz, "openapi": self._openapi}
        for route in ROUTES:
            asks = None if route.call is None else self._asks(route, route.call)
            app.router.add_route(route.method, route.path, self._guarded(route, asks or own[route.name]))
        app.on_shutdown.append(self._close)

    def _guarded(self, route: Route, handler: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.guard.check_request(request, route.access)
            return await handler(request)

        return handle

    def _asks(self, route: Route, ask: Callable[[Backend, Call], object]) -> Handler:
        """Returns the handler of a route that the backend answers."""
        adapter: TypeAdapter[Any] | None = None if route.answers is None else TypeAdapter(route.answers)

        async def handle(request: web.Request) -> web.Response:
            named, values = dict(request.match_info), await _values(route, request)
            if route.uploads:
                desk = self.backend.lending()
                # On the disk on which it stays.
                with TemporaryDirectory(dir=None if desk is None else desk.folder) as folder:
                    file = await _upload(route, request, Path(folder))
                    await self._in(self._lends, lambda: ask(self.backend, Call(named, values, file)))
                return web.Response(status=204)
            call = Call(named, values)
            if route.access is Access.LEND and not route.media:
                await self._in(self._lends, lambda: ask(self.backend, call))
                return web.Response(status=204)
            if route.access is Access.CHANGE:
                told = await self._change(lambda: ask(self.backend, call))
                if adapter is None or told is None:
                    return web.Response(status=204)
                status = 202 if isinstance(told, Note) and not told.done else 200
                return web.Response(body=adapter.dump_json(told), content_type=route.media, status=status)
            threads = self._lends if route.access is Access.LEND else self._readers
            found = await self._in(threads, lambda: _serialized(ask(self.backend, call), adapter))
            media = METRICS_TYPE if route.media == METRICS else route.media
            return web.Response(body=found, headers={"Content-Type": media})

        return handle

    async def _change(self, change: Callable[[], _T]) -> _T:
        """Carries out a change, which may take long, and returns what it returns.

        Raises:
            HTTPServiceUnavailable: ``MOST_CHANGES`` are under way.
        """
        # No lock: handlers run in one thread, and nothing awaits between look and count.
        if self._changes >= MOST_CHANGES:
            raise web.HTTPServiceUnavailable(
                text=f"{MOST_CHANGES} changes are under way; try again when they are done",
                headers={"Retry-After": "10"},
            )
        self._changes += 1
        try:
            return await self._in(self._changers, change)
        finally:
            self._changes -= 1

    async def _healthz(self, _request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(HEALTH_S):
                status = await self._in(self._health, self.backend.status)
        except Exception as error:
            _LOG.warning("the service does not tell its status: %r", error)
            return web.json_response({"ok": False}, status=503)
        has_begun = status.window >= 0
        return web.json_response({"ok": has_begun}, status=200 if has_begun else 503)

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(await self._in(self._readers, openapi_document))

    def _moment(self) -> StreamedMoment:
        status = self.backend.status()
        newest = newest_of([camera.id for camera in status.cameras], self.backend.newest_answer)
        return StreamedMoment(_STATUS.dump_json(status), newest)

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def _close(self, _app: web.Application) -> None:
        await self._events.close()
        for threads in (self._readers, self._changers, self._lends, self._health):
            # Without waiting: a call of the backend may hang, and the service has to end.
            threads.shutdown(wait=False, cancel_futures=True)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every error with JSON: ``{"error": "..."}``, without passwords."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        headers = {name: error.headers[name] for name in _TOLD_HEADERS if name in error.headers}
        return _problem(error.status, error.text or error.reason, headers)
    except UserError as error:
        return _problem(400, str(error))
    except NotThereError as error:
        return _problem(404, str(error))
    except Exception:
        _LOG.exception("%s %s failed", request.method, request.path)
        return _problem(500, "the service failed to answer; its log says why")


def _problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": mask_passwords(sentence)}, status=status, headers=headers)


def _serialized(found: object, adapter: TypeAdapter[Any] | None) -> bytes:
    if adapter is not None:
        return adapter.dump_json(found)
    if not isinstance(found, bytes):
        raise TypeError(f"{type(found).__name__} is no content of an answer")
    return found


async def _upload(route: Route, request: web.Request, folder: Path) -> Path:
    """Writes a body to a file, and returns it.

    Raises:
        UserError: it is too large, or does not match its SHA-256.
        HTTPUnsupportedMediaType: it is of another type.
    """
    if request.content_type != route.uploads:
        raise web.HTTPUnsupportedMediaType(text=f"send the body as {route.uploads}")
    path, digest, size = folder / "upload", sha256(), 0
    with path.open("wb") as file:
        async for part in request.content.iter_chunked(1 << 20):
            size += len(part)
            if size > MOST_UPLOAD_BYTES:
                raise UserError(f"a training of more than {MOST_UPLOAD_BYTES} bytes is not taken")
            digest.update(part)
            await asyncio.to_thread(file.write, part)
    if digest.hexdigest() != request.headers.get(DIGEST_HEADER):
        raise UserError(f"the body does not match its SHA-256 in the header {DIGEST_HEADER}; send it again")
    return path


async def _values(route: Route, request: web.Request) -> Mapping[str, Any]:
    """Returns the checked keys of a request's body or query.

    Raises:
        UserError: an unknown key, or a value that is not possible.
        HTTPUnsupportedMediaType, HTTPRequestTimeout: a body that is no JSON, or does not come.
    """
    if route.query is not None:
        if len(set(request.query)) < len(request.query):
            raise UserError("the query: a key stands there twice; keep one of them")
        return _checked(route.query, dict(request.query))
    if route.body is None or (route.may_be_empty and not request.body_exists):
        return {}
    if request.content_type != JSON:
        raise web.HTTPUnsupportedMediaType(text=f"send the body as {JSON}")
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.json(loads=partial(json.loads, object_pairs_hook=require_distinct_keys))
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {BODY_S:g} s") from None
    except (ValueError, RecursionError, LookupError) as error:  # the last for a charset that there is not
        raise UserError(f"the body is no JSON ({error}); correct it") from None
    if not isinstance(raw, dict):
        raise UserError("the body is no JSON object; write keys and values")
    return raw if route.body is StreamConfig else _checked(route.body, raw)


def _checked(model: type[Any], raw: Mapping[str, object]) -> Mapping[str, Any]:
    try:
        given: Mapping[str, Any] = model.model_validate(raw).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise UserError(describe_first_problem(error, raw, model)) from None
    return given
