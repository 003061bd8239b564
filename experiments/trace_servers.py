"""Servers of the trace world: each replays a separate trace, and nothing is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ekya.core.plan import Plan
from ekya.core.trace import Trace
from ekya.core.units import StreamId
from ekya.core.view import WindowView
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.offers import LinkSizes
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import Tier
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.lending import Made
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.servers import ServerDeath, ServerFleet, ServerRun
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.simulation.executor import VirtualExecutor
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.simulate import Conditions, NoJournal
from ekya.simulation.trace.world import TraceWorld

SIZES = LinkSizes(
    crop_mb=(32 * 32 * 3 + 3 * 8) / 1e6,
    model_mb=45.0,
    blocks_mb=(33.574912, 8.398848, 2.102272, 0.591872, 0.038144),
    features=512,
    classes=6,
    exemplars=120,
)
"""For crops of 32 x 32 pixels, each with class, track and time, and a ResNet18 for six classes."""


@dataclass(frozen=True, slots=True)
class TraceServer:
    """A server and its trace.

    Attributes:
        terms: conditions under which it is part of the fleet.
        trace: of its streams.
        conditions: its GPUs and windows.
    """

    terms: ServerTerms
    trace: Trace
    conditions: Conditions


@dataclass(frozen=True, slots=True, eq=False)
class PlayedServers:
    """Results of a replay.

    Attributes:
        accuracy: of each stream of each server in each window; 0 in windows that ended after the server did.
        loans: in the order in which they were agreed.
        moved_mb: traffic over each link.
    """

    accuracy: dict[SiteName, dict[StreamId, tuple[float, ...]]]
    loans: tuple[Made, ...]
    moved_mb: dict[tuple[SiteName, SiteName], float]

    @property
    def mean_accuracy(self) -> float:
        """Mean over all streams of all servers and their windows."""
        return fmean(
            value for streams in self.accuracy.values() for windows in streams.values() for value in windows
        )


def play_servers(
    servers: Sequence[TraceServer],
    scheduler: Scheduler,
    tier: Tier | None,
    links: Links,
    failures: Sequence[ServerDeath] = (),
    sizes: LinkSizes = SIZES,
    seed: int = 0,
) -> PlayedServers:
    """Replays all servers side by side; with a tier they lend each other shares."""
    worlds = {server.terms.site: _world(server) for server in servers}
    specs = [_spec(server, worlds[server.terms.site], scheduler, sizes) for server in servers]
    above = None if tier is None else LoanCoordinator(tier, links, seed)
    fleet = ServerFleet(specs, above, failures)
    fleet.run()
    accuracy = {
        server.terms.site: _accuracy(server, worlds[server.terms.site], fleet.ended_us[server.terms.site])
        for server in servers
    }
    loans, moved_mb = ((), {}) if above is None else (tuple(above.loans), dict(above.moved_mb))
    return PlayedServers(accuracy, loans, moved_mb)


def _world(server: TraceServer) -> TraceWorld:
    conditions = server.conditions
    estimates = Estimates(conditions.error_sd, conditions.relative_error, False, conditions.seed)
    return TraceWorld(server.trace, conditions.loop_options(server.trace), estimates)


def _spec(server: TraceServer, world: TraceWorld, scheduler: Scheduler, sizes: LinkSizes) -> ServerRun:
    options = server.conditions.loop_options(server.trace)
    executor = VirtualExecutor(world, options.checkpoint_delay_us or 0)

    def plan(view: WindowView) -> Plan:
        made = scheduler.plan(view)
        executor.charge(server.conditions.planning_us)
        return made

    return ServerRun(
        terms=server.terms,
        executor=executor,
        journal=NoJournal(),
        scheduler=scheduler,
        options=options,
        sizes=sizes,
        plan=plan,
    )


def _accuracy(server: TraceServer, world: TraceWorld, ended_us: int) -> dict[StreamId, tuple[float, ...]]:
    options = server.conditions.loop_options(server.trace)

    def of(stream: StreamId, window: int) -> float:
        lived = (window + 1) * options.window_us <= ended_us
        return world.mean_accuracy(stream, window) if lived else 0.0

    return {
        stream.stream: tuple(
            of(stream.stream, window) for window in range(min(options.windows or 0, len(stream.windows)))
        )
        for stream in server.trace.streams
    }
