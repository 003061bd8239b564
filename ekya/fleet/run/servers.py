"""Several servers with separate streams and schedulers on virtual time, which lend each other shares.

Their control loops take steps in order of their clocks: the server furthest behind goes next. The
coordinator decides between two steps, and servers learn of loans by events.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ekya.control.loop import Observer, iterate_steps
from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Journal, Planner
from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.fleet.policy.offers import LinkSizes
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.elsewhere import AsForeseen, Home
from ekya.fleet.run.server import LendingServer, ServerTerms
from ekya.planning.schedulers.scheduler import Scheduler

AHEAD_US = 1_000_000
"""Limit of one server's lead over another, so that both agree on a loan at nearly the same time."""


@dataclass(frozen=True, slots=True)
class ServerRun:
    """One server to run.

    Attributes:
        terms: conditions under which it is part of the fleet.
        executor: of its world.
        journal: of its run.
        scheduler: of the server.
        options: constants of its control loop.
        sizes: of the data that it would send.
        plan: asks the scheduler for a plan that will be carried out, and advances time by the planning time.
        observe: called after every step of the control loop.
    """

    terms: ServerTerms
    executor: Home
    journal: Journal
    scheduler: Scheduler
    options: LoopOptions
    sizes: LinkSizes
    plan: Planner
    observe: Observer = lambda batch, turn: None


@dataclass(frozen=True, slots=True)
class ServerDeath:
    """A server's death at a given time."""

    site: SiteName
    at_us: int


@dataclass(slots=True, eq=False)
class _Running:
    server: LendingServer
    loop: Iterator[LoopState] = field(default_factory=lambda: iter(()))

    @property
    def now_us(self) -> int:
        return self.server.executor.now_us


class ServerFleet:
    """Runs servers side by side until all are done.

    Args:
        servers: of the fleet.
        above: coordinator of all servers; None: every server works alone.
        failures: servers that die.

    Attributes:
        ended_us: when each server ended.
        died_us: when each server died that did.
    """

    def __init__(
        self,
        servers: Iterable[ServerRun],
        above: LoanCoordinator | None,
        failures: Sequence[ServerDeath] = (),
    ) -> None:
        self._above = above
        self._failures = sorted(failures, key=lambda failure: failure.at_us)
        self._running = {spec.terms.site: self._begin(spec) for spec in servers}
        self.ended_us: dict[SiteName, int] = {}
        self.died_us: dict[SiteName, int] = {}

    def run(self) -> None:
        """Runs until every server's last window has closed or the server has died."""
        while behind := self._furthest_behind():
            if self._failures and self._failures[0].at_us <= behind.now_us:
                self._fail(self._failures.pop(0))
            else:
                if self._above is not None:
                    self._above.decide_if_due(behind.now_us)
                self._take_turn(behind)

    def give_up_remote(self) -> None:
        """Gives up the remote retrainings of servers that were still running when ``run`` was interrupted."""
        for running in self._running.values():
            running.server.executor.give_up_all()

    def _begin(self, spec: ServerRun) -> _Running:
        server = LendingServer(
            spec.terms,
            spec.scheduler,
            spec.options,
            spec.sizes,
            self._above,
            spec.executor,
            AsForeseen(spec.executor),
        )

        def plan(view: WindowView) -> Plan:
            return server.plan_window(view, spec.plan)

        needs, options = spec.scheduler.needs, spec.options
        if self._above is not None:
            self._above.add_borrower(server.site, server.executor)
            self._above.add_lender(server.site, server.executor)
        return _Running(
            server, iterate_steps(server.executor, spec.journal, plan, needs, options, spec.observe)
        )

    def _furthest_behind(self) -> _Running | None:
        return min(self._running.values(), key=lambda one: (one.now_us, one.server.site), default=None)

    def _take_turn(self, running: _Running) -> None:
        server = running.server
        server.executor.not_beyond(self._limit_us(running))
        state = next(running.loop, None)
        if state is not None:
            server.follow_state(state)
            return
        self._ends(server.site, running.now_us)
        if self._above is not None:
            self._above.remove_server(server.site)

    def _limit_us(self, running: _Running) -> int | None:
        """Returns how far a server may go: at most to the next failure and ``AHEAD_US`` beyond the others."""
        others = [one.now_us for one in self._running.values() if one is not running]
        ahead_us = [min(others) + AHEAD_US] if others else []
        return min([*ahead_us, *(failure.at_us for failure in self._failures[:1])], default=None)

    def _fail(self, failure: ServerDeath) -> None:
        if failure.site not in self._running:
            return  # Its run had ended before.
        self._ends(failure.site, failure.at_us)
        self.died_us[failure.site] = failure.at_us
        if self._above is not None:
            self._above.on_server_death(failure.site, failure.at_us)

    def _ends(self, site: SiteName, at_us: int) -> None:
        del self._running[site]
        self.ended_us[site] = at_us
