"""The manager's components as REST endpoints, ``http://<ip>:<port>/<endpoint>?<arguments>`` (§IV.A).

    POST /monitor?node=nano-1&kind=nano&cpu=0.3&mem=0.4&trains=1&app=sift:0.2
                                        heartbeat of a machine, with its state
    GET  /monitor                       active machines, updates under way, and outcomes of past ones;
                                        of each update whether a request or a trigger has launched it
    GET  /solver?store=cam-1            solves an assignment; nothing is started
    POST /launcher?store=cam-1          solves, fetches the samples, launches, as the store's trigger does
    DELETE /launcher?task=cam-1         kills an update
    GET  /accuracy?task=cam-1           accuracies so far, and the estimated number of epochs
    POST /profiler?batch=8&cpu=0.5      measures data points on the manager's machine, adds them

Listens on loopback by default: every client can start and end trainings.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite

from aiohttp import web

from ekya.core.errors import UserError
from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.deep_edge.profile import EdgeWork, ProfilePoint, Tried
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.places import BackgroundApp, Node, NodeState
from ekya.fleet.run.deep_edge.manager import EdgeManager
from ekya.fleet.run.deep_edge.profiler import ProfileRun, profiled
from ekya.fleet.run.deep_edge.store import DataStore
from ekya.fleet.run.deep_edge.stress import StressPoint
from ekya.gpu.backends.backend import ShareBackend

_LOG = logging.getLogger(__name__)

LOOPBACK, PORT = "127.0.0.1", 8471
LOOK_EVERY_S = 1.0
WATCH_EVERY_S = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Offline:
    """Requirements of the Profiler, which belongs to the design mode.

    Attributes:
        work: kind of the manager's machine, and the edge model.
        backend: opened.
        keep: stores data points with their conditions; returns their number in total.
    """

    work: EdgeWork
    backend: ShareBackend
    keep: Callable[[Sequence[ProfilePoint], Sequence[Tried]], int]


def application(
    manager: EdgeManager,
    stores: Mapping[str, DataStore],
    offline: Offline | None = None,
    admit: Callable[[Node], object] = lambda _node: None,
    watches: Sequence[Callable[[], object]] = (),
) -> web.Application:
    """Builds the endpoints, a task that runs the monitors every second, and one that watches the stores.

    Args:
        manager: behind the endpoints.
        stores: data stores by name.
        offline: None where the Profiler is off.
        admit: called with each machine that sends a heartbeat; its UserError says why that cannot train.
        watches: checks of stores that have a trigger, called one after the other every 5 s.
    """
    endpoints = _Endpoints(manager, stores, offline, admit, watches)
    app = web.Application(middlewares=[_told])
    app.router.add_post("/monitor", endpoints.hear)
    app.router.add_get("/monitor", endpoints.monitor)
    app.router.add_get("/solver", endpoints.solve)
    app.router.add_post("/launcher", endpoints.launch)
    app.router.add_delete("/launcher", endpoints.kill)
    app.router.add_get("/accuracy", endpoints.accuracy)
    app.router.add_post("/profiler", endpoints.profile)
    app.cleanup_ctx.append(endpoints.looking)
    return app


def serve(
    app: web.Application,
    host: str = LOOPBACK,
    port: int = PORT,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serves until it is interrupted.

    Args:
        app: of ``application``.
        host, port: to listen on.
        ready: called once, when the service can be reached.

    Raises:
        UserError: the port is in use.
    """
    try:
        web.run_app(app, host=host, port=port, print=ready, access_log=None)
    except OSError as error:
        raise UserError(f"{host}:{port} cannot be had ({error.strerror}); choose another --port") from error


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a ``UserError``, which the caller can correct, with status 400 and its message."""
    try:
        return await handler(request)
    except UserError as error:
        return web.json_response({"error": str(error)}, status=400)


class _Endpoints:
    """One method per endpoint. Slow work runs in a thread."""

    def __init__(
        self,
        manager: EdgeManager,
        stores: Mapping[str, DataStore],
        offline: Offline | None,
        admit: Callable[[Node], object],
        watches: Sequence[Callable[[], object]],
    ) -> None:
        self._manager, self._stores, self._offline, self._admit = manager, stores, offline, admit
        self._watches = watches
        self._profiling = asyncio.Lock()

    async def looking(self, _app: web.Application) -> AsyncIterator[None]:
        """Runs the monitors and the watch over the stores while the service lasts."""
        tasks = [
            asyncio.create_task(_look_on((self._manager.look,), LOOK_EVERY_S)),
            asyncio.create_task(_look_on(self._watches, WATCH_EVERY_S)),
        ]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def hear(self, request: web.Request) -> web.Response:
        node = _node(request.query)
        await asyncio.to_thread(self._admit, node)
        await asyncio.to_thread(self._manager.hear, node)
        return web.json_response({})

    async def monitor(self, _request: web.Request) -> web.Response:
        tasks = {
            name: {
                "state": task.progress.state,
                "epochs": len(task.progress.epochs),
                "workers": _shards(task.assignment),
                "failures": [asdict(failure) for failure in task.progress.failures],
                "launched_by": task.launched_by,
            }
            for name, (task, _) in self._manager.tasks().items()
        }
        active = {name: asdict(node.state) for name, node in self._manager.active().items()}
        ended = {name: asdict(one) for name, one in self._manager.ended().items()}
        return web.json_response({"active": active, "tasks": tasks, "ended": ended})

    async def solve(self, request: web.Request) -> web.Response:
        job = self._store(request).job()
        return web.json_response(_said(await asyncio.to_thread(self._manager.solve, job)))

    async def launch(self, request: web.Request) -> web.Response:
        store = self._store(request)
        return web.json_response(_said(await asyncio.to_thread(self._manager.trigger, store)))

    async def kill(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._manager.kill, JobName(_word(request.query, "task")))
        return web.json_response({})

    async def accuracy(self, request: web.Request) -> web.Response:
        name = JobName(_word(request.query, "task"))
        tasks = self._manager.tasks()
        if name not in tasks:
            raise UserError(f"no task {name} is under way; GET /monitor names those that are")
        task, outlook = tasks[name]
        progress = task.progress
        return web.json_response(
            {
                "start": progress.start_accuracy,
                "accuracies": [epoch.validation_accuracy for epoch in progress.epochs],
                "planned": progress.planned_epochs,
                "outlook": None if outlook is None else asdict(outlook),
            }
        )

    async def profile(self, request: web.Request) -> web.Response:
        offline, query = self._offline, request.query
        if offline is None:
            raise UserError("this manager profiles nothing; start it with --kind, of the machine it is on")
        run = ProfileRun(
            offline.work,
            seconds=_number(query, "seconds", 3.0),
            batches=(round(_number(query, "batch", 16)),),
            shares_milli=(round(_number(query, "share_milli", 1000)),),
            points=(StressPoint(_number(query, "cpu", 0.0), _number(query, "mem", 0.0)),),
        )
        async with self._profiling:  # two profiles at a time would measure each other
            return web.json_response(await asyncio.to_thread(_profile, run, offline))

    def _store(self, request: web.Request) -> DataStore:
        name = _word(request.query, "store")
        if name not in self._stores:
            raise UserError(f"there is no data store {name}; there is {', '.join(self._stores) or 'none'}")
        return self._stores[name]


async def _look_on(looks: Sequence[Callable[[], object]], every_s: float) -> None:
    while True:
        for look in looks:
            try:
                await asyncio.to_thread(look)
            except Exception:
                # One failed check must not end the periodic task, nor keep the other checks from running.
                _LOG.exception("a look fails, and is tried again")
        await asyncio.sleep(every_s)


def _profile(run: ProfileRun, offline: Offline) -> dict[str, object]:
    found = list(profiled(run, offline.backend))
    in_all = offline.keep([point for _, point in found], [tried for tried, _ in found])
    return {"points": [asdict(point) for _, point in found], "in_all": in_all}


def _node(query: Mapping[str, str]) -> Node:
    """Parses a machine's heartbeat; ``trains`` and ``serves`` are its capacities by role."""
    apps = []
    if "app" in query:
        name, _, seconds = query["app"].rpartition(":")
        if not name:
            raise UserError(f"app={query['app']}: give its name and its deadline in seconds, as sift:0.2")
        apps.append(BackgroundApp(name, _float("app", seconds)))
    roles = {role: _number(query, role, 0.0) for role in ("trains", "serves")}
    return Node(
        NodeName(_word(query, "node")),
        SiteName(query.get("site", "edge")),
        _word(query, "kind"),
        capacity={role: count for role, count in roles.items() if count},
        state=NodeState(*(_part(query, name) for name in ("cpu", "gpu", "mem"))),
        apps=tuple(apps),
    )


def _word(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise UserError(f"{name} is missing; give it as ?{name}=...")
    return query[name]


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    return _float(name, query[name]) if name in query else default


def _part(query: Mapping[str, str], name: str) -> float:
    part = _number(query, name, 0.0)
    if not 0 <= part <= 1:
        raise UserError(f"{name}={part:g} is no part of a whole; give a number from 0 to 1")
    return part


def _float(name: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        raise UserError(f"{name}={word} is no number; give one as 0.5") from None
    if not isfinite(number):
        raise UserError(f"{name}={word} is no number; give one as 0.5")
    return number


def _said(assignment: Assignment) -> dict[str, object]:
    return {
        "workers": _shards(assignment),
        "server": assignment.parameter_server,
        "reason": assignment.reason,
    }


def _shards(assignment: Assignment) -> list[dict[str, object]]:
    return [
        {"node": part.node, "samples": part.chunks, "batch": part.batch, "share_milli": part.share_milli}
        for part in assignment.parts
    ]
