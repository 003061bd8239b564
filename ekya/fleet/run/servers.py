"""Several servers on virtual time, each with its own streams and Ekya inside, that lend each other shares.

Their loops take turns: whoever is furthest behind goes next. What one lends another is agreed between two
turns, and both learn of it by events of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ekya.control.loop import Observer, turns
from ekya.control.options import LoopOptions
from ekya.control.protocols import Journal, Planner
from ekya.control.step import LoopState
from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.fleet.policy.already_there import KeptModels
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Sizes
from ekya.fleet.run.desk import LoanDesk
from ekya.fleet.run.elsewhere import AsForeseen, Home
from ekya.fleet.run.server import LendingServer, ServerTerms
from ekya.scheduling.protocol import Scheduler

AHEAD_US = 1_000_000
"""No server goes further ahead of another: what is agreed between two is agreed at nearly one time."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server, before it runs.

    Attributes:
        terms: on which it is part of the fleet.
        executor: of its world.
        journal: of its run.
        scheduler: decides there.
        options: its loop's constants.
        sizes: of what it would send.
        plan: asks the scheduler for a plan that will be carried out, and lets the time pass that it takes.
        observe: is told of every turn.
    """

    terms: ServerTerms
    executor: Home
    journal: Journal
    scheduler: Scheduler
    options: LoopOptions
    sizes: Sizes
    plan: Planner
    observe: Observer = lambda batch, turn: None


@dataclass(frozen=True, slots=True)
class Failure:
    """A server that is gone from a time on."""

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
    """Runs servers beside each other until all are done.

    Args:
        servers: of the fleet.
        desk: agrees on loans; None: nobody does.
        failures: servers that die.

    Attributes:
        ended_us: when each came to its end.
        died_us: when those did that died before.
    """

    def __init__(
        self,
        servers: Iterable[ServerSpec],
        desk: LoanDesk | None,
        failures: Sequence[Failure] = (),
    ) -> None:
        self._desk = desk
        self._failures = sorted(failures, key=lambda failure: failure.at_us)
        self._running = {spec.terms.site: self._begin(spec) for spec in servers}
        self.ended_us: dict[SiteName, int] = {}
        self.died_us: dict[SiteName, int] = {}

    def run(self) -> None:
        """Until every server's last window has closed, or it died."""
        while behind := self._furthest_behind():
            if self._failures and self._failures[0].at_us <= behind.now_us:
                self._fail(self._failures.pop(0))
            else:
                self._take_turn(behind)

    def end(self) -> None:
        """Where ``run`` was left before its end: what others do for those that still ran ends too."""
        for running in self._running.values():
            running.server.give_up_all()

    def _begin(self, spec: ServerSpec) -> _Running:
        server = LendingServer(
            spec.terms,
            spec.scheduler,
            spec.options,
            spec.sizes,
            self._desk,
            spec.executor,
            AsForeseen(spec.executor),
            kept=KeptModels(),
        )

        def plan(view: WindowView) -> Plan:
            return server.plan(view, spec.plan)

        needs, options = spec.scheduler.needs, spec.options
        if self._desk is not None:
            self._desk.join(server.site, server)
        return _Running(server, turns(server.executor, spec.journal, plan, needs, options, spec.observe))

    def _furthest_behind(self) -> _Running | None:
        return min(self._running.values(), key=lambda one: (one.now_us, one.server.site), default=None)

    def _take_turn(self, running: _Running) -> None:
        server = running.server
        server.executor.not_beyond(self._limit_us(running))
        state = next(running.loop, None)
        if state is not None:
            server.follow(state)
            return
        self._ends(server.site, running.now_us)
        if self._desk is not None:
            self._desk.leave(server.site)

    def _limit_us(self, running: _Running) -> int | None:
        """How far a server may go: to the next failure, and little beyond the others."""
        others = [one.now_us for one in self._running.values() if one is not running]
        ahead_us = [min(others) + AHEAD_US] if others else []
        return min([*ahead_us, *(failure.at_us for failure in self._failures[:1])], default=None)

    def _fail(self, failure: Failure) -> None:
        if failure.site not in self._running:
            return  # It had come to its end before.
        self._ends(failure.site, failure.at_us)
        self.died_us[failure.site] = failure.at_us
        if self._desk is not None:
            self._desk.died(failure.site, failure.at_us)

    def _ends(self, site: SiteName, at_us: int) -> None:
        del self._running[site]
        self.ended_us[site] = at_us
