"""`ekya fleet run` on the wall clock: lets sites run their servers, and coordinates them."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYetError
from typing import TYPE_CHECKING
from uuid import uuid4

from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.calls import CallError, Handle, LocalHandle, public_methods
from ekya.fleet.run.live.coordination import live_coordinator, peer_at
from ekya.fleet.run.live.found_sites import FoundSites
from ekya.fleet.run.live.orders import Neighbour, RunOrder, RunState
from ekya.fleet.run.live.watched_servers import LiveServers
from ekya.fleet.run.server import AboveServers
from ekya.fleet.run.servers_folder import LiveRun, ServersFolder
from ekya.fleet.run.sites.server import SiteServer

if TYPE_CHECKING:
    from ekya.fleet.run.stores.updates import StoreUpdates

_LOG = logging.getLogger(__name__)

OPENS_WITHIN_S = 60.0
_LOOK_S = 0.5
_ANSWERS_S = 10.0


def start_servers(
    folder: ServersFolder,
    links: Links,
    tier: str | None,
    seed: int,
    changes: Mapping[str, object],
    sites: FoundSites,
    doors: SiteServer,
    updates: "StoreUpdates | None" = None,
) -> "LiveServers":
    """Lets all sites open their servers, and begins the run when they are ready.

    Args:
        folder: newly made.
        links: between the servers.
        tier: as in ``LiveRun``.
        seed: of all random draws.
        changes: top-level keys to override in every fleet file.
        sites: where the servers are to run.
        doors: where sites reach the coordinator.
        updates: of stored models; None without stores.

    Raises:
        UserError: a site is not reached, or found an error in its input. No server runs then.
    """
    live = LiveRun(uuid4().hex[:12], tier, seed, links, sites.addresses)
    live.save(folder.live)
    coordinator = _coordinator(live, folder, {})
    reached = _offered(coordinator, doors)
    orders = {
        site: RunOrder(
            live.run, folder.path.name, sites.folder(site, folder.path), seed, dict(changes), reached
        )
        for site in sites.handles
    }
    asked = {site: handle.call("open_run", orders[site]) for site, handle in sites.handles.items()}
    try:
        opened = {site: _reply(site, told, OPENS_WITHIN_S) for site, told in asked.items()}
    except (UserError, KeyboardInterrupt):
        begun, _ = wait(asked.values(), _ANSWERS_S)
        runs = [told.result() for told in begun if told.exception() is None]
        wait([run.server.call("stop_run") for run in runs], _ANSWERS_S)
        raise
    servers = LiveServers(folder, live, coordinator, sites, opened, updates)
    servers.begin_runs(reached)
    return servers


def resume_servers(
    folder: ServersFolder, sites: FoundSites, doors: SiteServer, updates: "StoreUpdates | None" = None
) -> "LiveServers":
    """Takes up a run whose driver has died: its servers went on meanwhile, or their sites take it up.

    Raises:
        UserError: the folder has no such run.
    """
    live = LiveRun.load(folder.live)
    opened = {}
    for site, handle in sites.handles.items():
        try:
            opened[site] = handle.call("reopen_run", live.run).result(_ANSWERS_S)
        except (CallError, NotYetError) as error:
            _LOG.warning("%s: %s", site, str(error) or "no answer")
    states = {site: _state_of(one.server) for site, one in opened.items()}
    there = {site: one.server for site, one in opened.items() if states[site].phase == "running"}
    ends_us = max((state.ends_us or 0 for state in states.values()), default=0)
    away = dict.fromkeys(sites.handles.keys() - opened, ends_us)
    opened |= {site: Neighbour(sites.server(site, live.run), "") for site in away}
    coordinator = _coordinator(live, folder, there)
    reached = _offered(coordinator, doors)
    servers = LiveServers(folder, live, coordinator, sites, opened, updates)
    if states and all(state.phase in ("opening", "ready") for state in states.values()):
        servers.begin_runs(reached)
    else:
        servers.go_on(reached, max((state.now_us for state in states.values()), default=0), away)
    return servers


def _coordinator(
    live: LiveRun, folder: ServersFolder, there: Mapping[SiteName, Handle]
) -> LocalHandle | None:
    if live.tier is None:
        return None
    peers = {site: peer_at(server) for site, server in there.items()}
    served = live_coordinator(TIERS[live.tier], live.links, live.seed, folder.loans.absolute(), peers)
    return LocalHandle(served, threads=1)  # One call at a time, so that no capacity is lent twice.


def _offered(coordinator: LocalHandle | None, doors: SiteServer) -> Handle | None:
    """Lets sites reach the coordinator; returns it as they do."""
    if coordinator is None:
        return None
    return doors.offer_object(
        "coordinator",
        coordinator,
        (*public_methods(AboveServers), "add_later_traffic", "wait_for_earlier_calls"),
    )


def _reply(site: SiteName, told: "Future[Neighbour]", within_s: float) -> Neighbour:
    try:
        return told.result(within_s)
    except UserError as error:
        raise UserError(f"{site}: {error}") from error
    except (CallError, NotYetError) as error:
        raise UserError(
            f"{site}: {str(error) or 'no answer'}; see the output of ekya fleet site there"
        ) from error


def _state_of(server: Handle) -> RunState:
    try:
        state: RunState = server.call("run_state").result(_ANSWERS_S)
        return state
    except (CallError, NotYetError):
        return RunState("opening")
