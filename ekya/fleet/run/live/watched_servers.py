"""Servers under way, as the process of `ekya fleet run` watches over them."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekya.config.fleet_reading import load_fleet
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.live.coordination import RemotePeer, peer_at
from ekya.fleet.run.live.found_sites import FoundSites
from ekya.fleet.run.live.orders import Neighbour, RunOrder, RunState
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import LiveRun, RanServers, ServersFolder, collect
from ekya.results.finalize import finish_run
from ekya.results.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from ekya.fleet.run.stores.updates import StoreUpdates

_LOG = logging.getLogger(__name__)

LEAD_US = 1_500_000
"""Time between announcing the start to the servers and the start itself."""

AWAY_S = 5.0
"""A server that has not answered for this long is taken for dead until it answers again."""

WAITED_S = 20.0
"""Time after its planned end for which a server that does not answer is waited for."""

_PART_WITHIN_S = 60.0
"""Timeout of a part of a file from another machine."""

_LOOK_S = 0.5
_ANSWERS_S = 10.0


@dataclass(slots=True, eq=False)
class _Watched:
    """A server as the driver sees it.

    Attributes:
        silent_s: for how long it has not answered, while this process looked.
        asked: request for its state that is not answered yet.
        state: its last answer.
        away: it is taken for dead.
        resumes: request to its site to take the run up, if its process was started again.
        why: last reason why the site does not.
    """

    server: Handle
    machine: str
    silent_s: float = 0.0
    asked: "Future[RunState] | None" = None
    state: RunState = field(default_factory=lambda: RunState("opening"))
    away: bool = False
    resumes: "Future[Neighbour] | None" = None
    why: str = ""


class LiveServers:
    """Servers under way, as the driver watches over them.

    Args:
        folder: of the run.
        live: the run.
        coordinator: in this process; None: every server works alone.
        sites: where the servers are.
        opened: their runs.
        updates: of stored models; None without stores.
        now_s: a clock that is never set.
        sleep: waits for a number of seconds of that clock.
    """

    def __init__(
        self,
        folder: ServersFolder,
        live: LiveRun,
        coordinator: Handle | None,
        sites: FoundSites,
        opened: Mapping[SiteName, Neighbour],
        updates: "StoreUpdates | None" = None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._updates, self._now_s, self._sleep = updates, now_s, sleep
        self._looked: Future[Any] | None = None
        self._folder, self._live, self._coordinator, self._sites = folder, live, coordinator, sites
        self._reached: Handle | None = None
        self._servers = {site: _Watched(one.server, one.machine) for site, one in opened.items()}
        self._began_s: float | None = None
        self._reasons: list[str] = []
        self._ticked: Future[Any] | None = None
        self._stopping, self._looked_s = False, 0.0
        self._ran = RanServers()

    def begin_runs(self, coordinator: Handle | None) -> None:
        """Waits until every server is ready, and starts all of them, without those that have died.

        Raises:
            UserError: a server found an error in its input; none runs then.
        """
        ready = {site: one.server.call("wait_ready") for site, one in self._servers.items()}
        try:
            for site, told in ready.items():
                self._await_ready(site, told)
        except (UserError, KeyboardInterrupt):
            wait(self._tell("stop_run"), _ANSWERS_S)
            raise
        self._reached = coordinator
        self._meet(_ANSWERS_S)
        for site, one in self._servers.items():
            self._tell_coordinator("add_server", site, peer_at(one.server))
        self._began_s = self._now_s() + LEAD_US / US_PER_S
        self._tell("set_start", LEAD_US)

    def go_on(self, coordinator: Handle | None, now_us: int, away: Mapping[SiteName, int]) -> None:
        """Goes on watching at this time of the run.

        Args:
            coordinator: as servers reach it.
            now_us: run time.
            away: sites that do not know of the run, with the run time of its end.
        """
        self._began_s, self._reached = self._now_s() - now_us / US_PER_S, coordinator
        # The last driver's processes for stores may still be there.
        wait(self._tell("other_died", STORES), _ANSWERS_S)
        self._meet(_ANSWERS_S)
        for site, ends_us in away.items():
            self._servers[site].state = RunState("opening", 0, ends_us)
            self._lose(site, self._servers[site])

    def watch_runs(
        self, failures: Sequence[ServerDeath], progress: Callable[[SiteName, int, int | None], None]
    ) -> RanServers:
        """Watches until the last server has ended, and collects its folder.

        Ctrl-C ends the run early; the results up to then are measured and written as usual. A server that
        dies or is cut off does not end the others; one that is reached again takes part again.

        Args:
            failures: sites that are made to fail.
            progress: receives the run time of each server and that of its end, in microseconds.

        Raises:
            UserError: no server has a result, with the reasons.
        """
        due = sorted(failures, key=lambda one: one.at_us)
        while self._servers:
            try:
                while due and due[0].at_us <= self._now_us():
                    self._let_fail(due.pop(0).site)
                self._look(progress)
            except KeyboardInterrupt:
                _LOG.warning("stopping; measuring what there is")
                self._stopping = True
                due = []
                self._end_updates()
                self._tell("stop_run")
        self._end_updates()
        if self._coordinator is not None:
            wait(
                [self._coordinator.call("wait_for_earlier_calls")], _ANSWERS_S
            )  # All loans are on disk then.
            self._coordinator.end_process()
        if not self._ran.summaries:
            raise UserError("; ".join(self._reasons))
        return self._ran

    def _await_ready(self, site: SiteName, told: "Future[RunState]") -> None:
        while True:
            try:
                state = told.result(_LOOK_S)
                break
            except NotYetError:
                if not self._sites.has_died(site):
                    continue
                self._gone(site, "its process has ended")
                return
            except CallError as error:
                self._gone(site, str(error))
                return
        self._servers[site].state = state
        if state.phase == "failed" and state.by_user:
            raise UserError(f"{site}: {state.reason}")
        if state.phase == "failed":
            self._gone(site, state.reason)

    def _meet(self, within_s: float) -> None:
        """Tells all servers where the others are."""
        neighbours = {site: Neighbour(one.server, one.machine) for site, one in self._servers.items()}
        wait(self._tell("meet_neighbours", neighbours, self._reached), within_s)
        if self._updates is not None and self._coordinator is not None:
            self._updates.meet_neighbours(neighbours, self._coordinator)
            self._tell_coordinator("add_server", STORES, RemotePeer(self._updates.handle))

    def _end_updates(self) -> None:
        if self._updates is not None:
            self._updates.close()
            wait([self._looked] if self._looked is not None else [], _ANSWERS_S)

    def _tell(self, method: str, *arguments: object) -> "list[Future[Any]]":
        return [one.server.call(method, *arguments) for one in self._servers.values()]

    def _tell_coordinator(self, method: str, *arguments: object) -> "Future[Any] | None":
        return None if self._coordinator is None else self._coordinator.call(method, *arguments)

    def _now_us(self) -> int:
        since_s = 0.0 if self._began_s is None else self._now_s() - self._began_s
        return max(0, round(since_s * US_PER_S))

    def _look(self, progress: Callable[[SiteName, int, int | None], None]) -> None:
        """Asks all servers for their state once, and handles those that have ended, gone or come back."""
        if self._ticked is None or self._ticked.done():
            self._ticked = self._tell_coordinator("decide_if_due", self._now_us())
        if self._updates is not None and (self._looked is None or self._looked.done()):
            states = {site: "away" if one.away else one.state.phase for site, one in self._servers.items()}
            self._looked = self._updates.handle.call("look_after_stores", self._now_us(), states)
        for site, one in self._servers.items():
            if one.asked is None:
                one.asked = one.server.call("run_state")
            if one.away and one.resumes is None and not self._stopping:
                one.resumes = self._sites.handles[site].call("open_run", self._resumption())
        wait([one.asked for one in self._servers.values() if one.asked is not None], _LOOK_S)
        now_s = self._now_s()
        # This process may have been stopped, or have copied a folder.
        passed_s, self._looked_s = min(now_s - self._looked_s, 2 * _LOOK_S), now_s
        for site, one in list(self._servers.items()):
            one.silent_s += passed_s
            if one.resumes is not None and one.resumes.done():
                resumes, one.resumes = one.resumes, None
                self._resumed(site, one, resumes)
            if one.asked is not None and one.asked.done():
                asked, one.asked = one.asked, None
                self._heard(site, one, asked)
            if site in self._servers:
                self._judge(site, one)
                progress(site, one.state.now_us, one.state.ends_us)
        self._sleep(_LOOK_S)

    def _heard(self, site: SiteName, one: _Watched, asked: "Future[RunState]") -> None:
        try:
            one.state = asked.result()
        except (CallError, UserError) as error:
            _LOG.debug("%s: %s", site, error)
            return
        one.silent_s = 0.0
        if one.state.phase == "running" and self._began_s is not None:
            # After a power cut of all sites and this machine only they know the time.
            self._began_s = min(self._began_s, self._now_s() - one.state.now_us / US_PER_S)
        if one.away and one.state.phase in ("running", "ended"):
            self._back(site, one)

    def _resumption(self) -> RunOrder:
        """Returns the order to take the run up."""
        live, name = self._live, self._folder.path.name
        return RunOrder(live.run, name, None, live.seed, {}, self._reached, self._now_us())

    def _resumed(self, site: SiteName, one: _Watched, resumes: "Future[Neighbour]") -> None:
        """Handles a site's answer to ``_resumption``; one whose process did not die has the run already."""
        try:
            opened = resumes.result()
        except (CallError, UserError) as error:
            if str(error) != one.why:
                _LOG.warning("%s stays out: %s", site, error)
            one.why = str(error)
            return
        if opened.machine != one.machine:
            _LOG.warning("%s was started again, and takes its run up", site)
        one.server, one.machine = opened.server, opened.machine
        one.silent_s, one.why = 0.0, ""

    def _judge(self, site: SiteName, one: _Watched) -> None:
        """Handles a server by its last state, and by how long it has been silent since."""
        if one.state.phase == "ended":
            self._ended(site, one)
        elif one.state.phase == "failed":
            self._gone(site, one.state.reason)
        elif self._sites.has_died(site):
            self._gone(site, "its process has ended")
        elif one.silent_s > AWAY_S and not one.away:
            _LOG.error("%s does not answer; the others go on", site)
            self._lose(site, one)
        elif one.away and one.silent_s > AWAY_S and (self._stopping or self._is_overdue(one)):
            self._gone(site, f"{one.why or 'it was not reached again'}; its results stay on its machine")

    def _lose(self, site: SiteName, one: _Watched) -> None:
        """Takes a server for dead until it answers, or its site has taken the run up."""
        one.away = True
        self._ran.died_s[site] = self._now_us() / US_PER_S
        self._tell_of_death(site)

    def _is_overdue(self, one: _Watched) -> bool:
        """Returns whether there is no use in waiting for it: the others have ended, and it should have."""
        ends_us = one.state.ends_us
        others_run = any(not other.away for other in self._servers.values())
        return not others_run and ends_us is not None and self._now_us() > ends_us + WAITED_S * US_PER_S

    def _back(self, site: SiteName, one: _Watched) -> None:
        _LOG.warning("%s is reached again", site)
        one.away = False
        self._ran.away_s.append((site, self._ran.died_s.pop(site), self._now_us() / US_PER_S))
        self._meet(_LOOK_S)  # It may be another process now, or have missed that another one is.
        self._tell_coordinator("add_server", site, peer_at(one.server))

    def _ended(self, site: SiteName, one: _Watched) -> None:
        self._tell_coordinator("remove_server", site)
        try:
            self._ran.summaries[site] = one.server.call("run_summary").result(_ANSWERS_S)
        except (CallError, NotYetError) as error:
            self._gone(site, str(error) or "its summary does not arrive")
            return
        del self._servers[site]
        collect_folder(one.server, self._folder.path / site)
        self._sites.handles[site].call("forget_run", self._live.run)

    def _gone(self, site: SiteName, reason: str) -> None:
        """Handles a server that will not come back; the others go on."""
        _LOG.error("%s died: %s", site, reason)
        self._reasons.append(f"{site}: {reason}")
        del self._servers[site]
        if site not in self._ran.died_s:
            self._ran.died_s[site] = self._now_us() / US_PER_S
            self._tell_of_death(site)
        summary = _left_behind(self._folder.path / site, self._live.seed)
        if summary is not None:
            self._ran.summaries[site] = summary

    def _tell_of_death(self, site: SiteName) -> None:
        self._tell_coordinator("on_server_death", site, self._now_us())
        for other, one in self._servers.items():
            if other != site:
                one.server.call("other_died", site)

    def _let_fail(self, site: SiteName) -> None:
        if site in self._servers:  # Otherwise its run had ended before.
            _LOG.warning("%s is made to fail", site)
            self._sites.kill_site(site)


def collect_folder(server: Handle, target: Path) -> None:
    """Copies a server's run folder here, where it is not here already."""

    def part(file: str, offset: int) -> bytes:
        return bytes(server.call("file_part", file, offset).result(_PART_WITHIN_S))

    try:
        if copied := collect(server.call("file_sizes").result(_ANSWERS_S), part, target):
            _LOG.info("%s: %.0f MB copied", target, copied / 1e6)
    except (CallError, UserError, NotYetError) as error:
        _LOG.warning("%s: its folder stays on its machine: %s", target, str(error) or "no answer")


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
