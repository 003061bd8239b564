"""Updates over REST, after Deep-Edge's manager: ``http://<ip>:<port>/<endpoint>?<arguments>`` (§IV.A).

GET  /monitor                       servers, updates that are wanted or under way, and past ones
GET  /solver?store=cam-1            what the coordinator would decide now; nothing is started
POST /launcher?store=cam-1          orders an update, as the store's trigger does; epochs=, due_s= and
                                    weight= are those of the store if left out
DELETE /launcher?task=cam-1         ends an update
GET  /accuracy?task=cam-1           accuracies so far, and the estimated number of epochs
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from hmac import compare_digest
from math import isfinite

from aiohttp import web
from aiohttp.typedefs import Handler

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, StreamId
from ekya.fleet.run.stores.update_book import UpdateBook
from ekya.fleet.run.stores.updates import StoreUpdates

WRONG_TOKEN_S = 0.5
"""Time after which a wrong token is refused, seconds."""


def application(book: UpdateBook, updates: StoreUpdates, token: str | None) -> web.Application:
    """Builds the endpoints.

    Args:
        book: of the updates.
        updates: under way.
        token: that clients must show as bearer; None admits all that reach it, other than pages of browsers.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None:
            shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not compare_digest(shown, f"Bearer {token}".encode()):
                await asyncio.sleep(WRONG_TOKEN_S)  # so that guessing is slow
                raise web.HTTPUnauthorized
        elif "Origin" in request.headers:
            raise web.HTTPForbidden(text="pages of other sites start no trainings")
        try:
            return await handler(request)
        except UserError as error:
            return web.json_response({"error": str(error)}, status=400)

    endpoints = _Endpoints(book, updates)
    app = web.Application(middlewares=[guard])
    app.router.add_get("/monitor", endpoints.monitor)
    app.router.add_get("/solver", endpoints.solve)
    app.router.add_post("/launcher", endpoints.launch)
    app.router.add_delete("/launcher", endpoints.kill)
    app.router.add_get("/accuracy", endpoints.accuracy)
    return app


class _Endpoints:
    """One method per endpoint. Slow work runs in a thread."""

    def __init__(self, book: UpdateBook, updates: StoreUpdates) -> None:
        self._book, self._updates = book, updates

    async def monitor(self, _request: web.Request) -> web.Response:
        return web.json_response(self._updates.describe_updates())

    async def solve(self, request: web.Request) -> web.Response:
        store = _name(request.query, "store")
        answer = await asyncio.to_thread(self._updates.would_get, store)
        loan = answer.loan
        if loan is None:
            return web.json_response(
                {"host": None, "reason": answer.why_not.get(store, "no server has room")}
            )
        return web.json_response(
            {
                "host": loan.host,
                "share_milli": loan.share_milli,
                "arrives_in_s": (loan.arrives_us - loan.offer.now_us) / US_PER_S,
                "reason": loan.reason,
            }
        )

    async def launch(self, request: web.Request) -> web.Response:
        query = request.query
        store = _name(query, "store")
        epochs, due_s, weight = (_number(query, key) for key in ("epochs", "due_s", "weight"))
        if epochs is not None and epochs != round(epochs):
            raise UserError(f"epochs={epochs:g} is no whole number; give one as 12")
        whole = None if epochs is None else round(epochs)
        made, _ = await asyncio.to_thread(self._book.draft_update, store, "request", whole, due_s, weight)
        return web.json_response({"update": await asyncio.to_thread(self._book.place_order, made)})

    async def kill(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._updates.kill_update, _name(request.query, "task"))
        return web.json_response({})

    async def accuracy(self, request: web.Request) -> web.Response:
        progress, outlook = self._updates.forecast(_name(request.query, "task"))
        return web.json_response(
            {
                "start": None if progress is None else progress.start_accuracy,
                "accuracies": [one.validation_accuracy for one in progress.epochs] if progress else [],
                "planned": None if progress is None else progress.planned_epochs,
                "outlook": None if outlook is None else asdict(outlook),
            }
        )


def _name(query: Mapping[str, str], key: str) -> StreamId:
    if not query.get(key):
        raise UserError(f"{key} is missing; give it as ?{key}=...")
    return StreamId(query[key])


def _number(query: Mapping[str, str], key: str) -> float | None:
    """Returns an argument that is a number above zero; None where it is left out."""
    if key not in query:
        return None
    try:
        number = float(query[key])
    except ValueError:
        number = 0.0
    if not isfinite(number) or number <= 0:
        raise UserError(f"{key}={query[key]} is no number above zero; give one as 12")
    return number
