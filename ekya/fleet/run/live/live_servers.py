"""`ekya fleet run` on the wall clock: a server actor on each Ray node, a coordinator, and supervision."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.cluster import Cluster
from ekya.fleet.run.live.collected import collect
from ekya.fleet.run.live.coordinator_actor import COORDINATOR, CoordinatorActor, server_name
from ekya.fleet.run.live.server_actor import ServerActor
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.fleet.run.servers_summary import RanServers
from ekya.fleet.servers_file import Servers
from ekya.results.finalize import finish_run
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actor_errors import in_words, reporting_user_errors, unwrapping_user_error
from ekya.system.memory import loaded_frozen
from ekya.system.ray_environment import OF_ACTOR

_LOG = logging.getLogger(__name__)

LEAD_NS = 1_500_000_000
"""Time between announcing the start to the servers and the start itself."""

STORE_BYTES = 1024**3
"""Object store of an emulated server's node."""

_LOOK_S = 0.5
_SERVER_THREADS = 16
"""Of a server's actor: one for its run, the others for requests meanwhile."""


def run_live_servers(
    folder: ServersFolder,
    servers: Servers,
    tier: str | None,
    failures: Sequence[ServerDeath],
    options: RunOptions,
    cluster: Cluster,
    watch: Callable[[SiteName, int], None],
) -> RanServers:
    """Runs all servers side by side, each on its node; this process is connected to Ray.

    Ctrl-C ends the run early; the results up to then are measured and written as usual. The death of a server
    does not end the others.

    Args:
        folder: newly made.
        servers: of the fleet.
        tier: name of the policy that finds loans; None: every server works alone.
        failures: nodes that are made to fail.
        options: of every server's run.
        cluster: with a node of the name of each server.
        watch: receives the progress of each server, in microseconds of the run.

    Raises:
        UserError: a server found something wrong with its input before the run began.
    """
    nodes = cluster.nodes()
    ray_nodes = {site: nodes[NodeName(site)].machine_id for site in servers.sites}
    coordinator = None
    if tier is not None:
        coordinator = _coordinator().remote(
            tier, servers.links, options.seed, folder.loans.absolute(), servers.sites
        )
        unwrapping_user_error(lambda: ray.get(coordinator.ready.remote()))
    actors = {
        server.terms.site: _at(ray_nodes[server.terms.site], server.terms.site).remote(
            server, folder.path, options, coordinator, ray_nodes
        )
        for server in servers.servers
    }
    with loaded_frozen():
        ran = _Watched(actors, coordinator, cluster, sorted(failures, key=lambda one: one.at_us), watch).run()
    for site in ran.summaries:
        _collect(actors[site], folder.path / site)
    for site in ran.died_s:
        summary = _left_behind(folder.path / site, options.seed)
        if summary is not None:
            ran.summaries[site] = summary
    return ran


def _collect(actor: Any, target: Path) -> None:
    """Copies a server's run folder here, if it is on another machine."""
    if (target / "summary.json").is_file():
        return
    try:
        copied = collect(
            ray.get(actor.files.remote()),
            lambda file, offset: ray.get(actor.part.remote(file, offset)),
            target,
        )
        _LOG.info("%s: %.0f MB copied", target, copied / 1e6)
    except (RayError, UserError) as error:
        words = in_words(error) if isinstance(error, RayError) else str(error)
        _LOG.warning("%s: its folder stays on its machine: %s", target, words)


def _left_behind(path: Path, seed: int) -> dict[str, Any] | None:
    """Measures the run of a server that died.

    Returns:
        Its summary; None where the run folder is on another machine or too incomplete.
    """
    if not (path / "fleet.yaml").is_file():
        return None
    try:
        folder = RunFolder.open(path)
        return finish_run(folder, load_fleet(folder.fleet), "live", seed)
    except UserError as error:
        _LOG.warning("%s: cannot be measured: %s", path, error)
        return None


@dataclass(slots=True, eq=False)
class _Watched:
    """Supervises running servers."""

    actors: dict[SiteName, Any]
    coordinator: Any | None
    cluster: Cluster
    failures: list[ServerDeath]
    watch: Callable[[SiteName, int], None]
    ran: RanServers = field(default_factory=RanServers)
    began_s: float | None = None
    complaint: UserError | None = None
    ticked: Any | None = None

    def run(self) -> RanServers:
        """Runs until the last server has ended.

        Raises:
            UserError: a server rejected its input before the run began, or one failed so and none finished.
        """
        under_way = {actor.run.remote(): site for site, actor in self.actors.items()}
        try:
            self._begin(under_way)
            while under_way:
                self._look(under_way)
        except KeyboardInterrupt:
            _LOG.warning("stopping; measuring what there is")
            for actor in self.actors.values():
                actor.stop.remote()
            self.failures.clear()
            while under_way:
                self._look(under_way)
        if self.complaint is not None and not self.ran.summaries:
            raise self.complaint
        return self.ran

    def _begin(self, under_way: dict[Any, SiteName]) -> None:
        """Starts the servers together when all are ready, without those that have died before.

        Raises:
            UserError: a server found an error in its input.
        """
        ready = {actor.wait_ready.remote(): site for site, actor in self.actors.items()}
        runs = {site: reference for reference, site in under_way.items()}
        waiting = list(ready)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=_LOOK_S)
            for site in (ready[reference] for reference in done if not _or_false(reference)):
                del under_way[runs[site]]
                self._never_began(site, runs[site])
        there = {site: self.actors[site] for site in under_way.values()}
        for site, actor in there.items():
            if self.coordinator is not None:
                self.coordinator.join.remote(site, actor)
        self.began_s = time.monotonic() + LEAD_NS / 1e9
        for actor in there.values():
            actor.begin.remote(LEAD_NS, self.actors)

    def _never_began(self, site: SiteName, run: Any) -> None:
        try:
            unwrapping_user_error(lambda: ray.get(run))
        except RayError as error:
            _LOG.error("%s died before the run began: %s", site, in_words(error))
        self.ran.died_s[site] = 0.0

    def _look(self, under_way: dict[Any, SiteName]) -> None:
        """Lets nodes fail that are due, handles servers that have ended or died, and reports progress."""
        since_s = 0.0 if self.began_s is None else time.monotonic() - self.began_s
        now_us = max(0, round(since_s * US_PER_S))
        while self.failures and self.failures[0].at_us <= now_us:
            self._let_fail(self.failures.pop(0).site, under_way.values())
        if self.coordinator is not None and (self.ticked is None or ray.wait([self.ticked], timeout=0)[0]):
            self.ticked = self.coordinator.tick.remote(now_us)
        done, running = ray.wait(list(under_way), timeout=_LOOK_S)
        for reference in done:
            self._ended(reference, under_way.pop(reference), now_us)
        for reference in running:
            self.watch(under_way[reference], now_us)

    def _let_fail(self, site: SiteName, under_way: Collection[SiteName]) -> None:
        if site in under_way:  # Otherwise its run had ended before.
            _LOG.warning("%s: its node is made to fail", site)
            self.cluster.fail(NodeName(site))

    def _ended(self, reference: Any, site: SiteName, now_us: int) -> None:
        try:
            self.ran.summaries[site] = unwrapping_user_error(lambda: ray.get(reference))
            if self.coordinator is not None:
                self.coordinator.leave.remote(site)
        except UserError as error:
            self.complaint = error
            self._died(site, now_us, str(error))
        except RayError as error:
            self._died(site, now_us, in_words(error))

    def _died(self, site: SiteName, now_us: int, reason: str) -> None:
        """Handles a server whose node, process or run failed; the others go on."""
        _LOG.error("%s died: %s", site, reason)
        self.ran.died_s[site] = now_us / US_PER_S
        if self.coordinator is not None:
            self.coordinator.died.remote(site, now_us)
        for other, actor in self.actors.items():
            if other != site:
                actor.other_died.remote(site)


def _or_false(reference: Any) -> bool:
    """Returns an actor's boolean reply; False where the actor is dead."""
    try:
        return bool(ray.get(reference))
    except RayError:
        return False


def _coordinator() -> Any:
    """Places the coordinator on the node of this process; Ray starts it again when it dies."""
    kind, name = reporting_user_errors(CoordinatorActor, COORDINATOR), COORDINATOR
    return _options(kind, name, 1, ray.get_runtime_context().get_node_id(), restarts=-1)


def _at(ray_node: str, site: SiteName) -> Any:
    return _options(ServerActor, server_name(site), _SERVER_THREADS, ray_node)


def _options(kind: type[Any], name: str, threads: int, ray_node: str, restarts: int = 0) -> Any:
    remote: Any = ray.remote
    return remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=restarts,
        max_concurrency=threads,
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray_node, soft=False),
        # Without a GPU request some versions of Ray hide all GPUs from the server, which lists them itself.
        runtime_env={"env_vars": OF_ACTOR},
    )
