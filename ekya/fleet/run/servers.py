"""Several servers, each with its own streams and Ekya inside, and a tier above that lends their shares.

The servers' loops take turns on virtual time: whoever is furthest behind goes next. What one lends another is
agreed between two turns, and both learn of it by events of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.control.loop import turns
from ekya.control.options import LoopOptions
from ekya.control.protocols import Executor, Journal
from ekya.control.step import LoopState
from ekya.control.views import window_view
from ekya.core.configs import RetrainConfig
from ekya.core.elsewhere import Elsewhere
from ekya.core.ids import StreamId
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.view import WindowView
from ekya.fleet.policy.brokering import broker
from ekya.fleet.policy.loans import Links, Loan, Way, loan_cost
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer, Sizes, offers, without_retraining
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.rooms import Room, room
from ekya.fleet.run.lending import LendingExecutor, Lent
from ekya.scheduling.protocol import Scheduler

AHEAD_US = 1_000_000
"""No server goes further ahead of another: what is agreed between two is agreed at nearly one time."""

STEP_MILLI = 100
"""Unit in which shares are lent."""

SHARES_MILLI = (100, 200, 300, 400, 600, 800, 1000)
"""Of which a host's scheduler is asked what it would lose; what lies between costs what the next one does."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server, before it runs.

    Attributes:
        site: its name.
        executor: of its world.
        journal: of its run.
        scheduler: decides there.
        options: its loop's constants.
        crops_may_leave: labelled crops may go to other servers.
        takes_guests: others' jobs may run there.
        charge: lets the time pass that a plan takes.
    """

    site: SiteName
    executor: Executor
    journal: Journal
    scheduler: Scheduler
    options: LoopOptions
    crops_may_leave: bool = True
    takes_guests: bool = True
    charge: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Failure:
    """A server that is gone from a time on."""

    site: SiteName
    at_us: int


@dataclass(slots=True, eq=False)
class Made:
    """A loan as it went.

    Attributes:
        loan: as it was agreed.
        lent: the share at each host.
        outcome: empty while it lasts; then what came of it.
        over_us: when that was.
    """

    loan: Loan
    lent: Mapping[SiteName, Lent]
    outcome: str = ""
    over_us: int = 0

    def ends(self, outcome: str, now_us: int) -> None:
        """That is what came of it; the hosts have their shares again."""
        self.outcome, self.over_us = outcome, now_us
        for lent in self.lent.values():
            lent.to_us = min(lent.to_us, now_us)


@dataclass(slots=True, eq=False)
class _Server:
    spec: ServerSpec
    executor: LendingExecutor
    loop: Iterator[LoopState] = field(default_factory=lambda: iter(()))
    state: LoopState | None = None
    borrowed: dict[StreamId, Made] = field(default_factory=dict)
    wants: bool = False
    running: bool = True


class ServerFleet:
    """Runs servers beside each other until all are done.

    Args:
        servers: of the fleet.
        policy: places what a server has no room for; None: nobody does.
        links: between the servers.
        sizes: of what crosses them.
        failures: servers that die.
        seed: handed to the policy.
    """

    def __init__(
        self,
        servers: Iterable[ServerSpec],
        policy: FleetPolicy | None,
        links: Links,
        sizes: Sizes,
        failures: Sequence[Failure] = (),
        seed: int = 0,
    ) -> None:
        self._policy, self._links, self._sizes, self._seed = policy, links, sizes, seed
        self._failures = sorted(failures, key=lambda failure: failure.at_us)
        self._servers = {spec.site: self._begin(spec) for spec in servers}
        self.loans: list[Made] = []
        self.ended_us: dict[SiteName, int] = {}

    def run(self) -> None:
        """Until every server's last window has closed, or it died."""
        while behind := self._furthest_behind():
            if self._failures and self._failures[0].at_us <= behind.executor.now_us:
                self._fail(self._failures.pop(0))
                continue
            self._take_turn(behind)

    @property
    def moved_mb(self) -> Mapping[Way, float]:
        """What crossed each link, both ways: crops, models and snapshots, never frames."""
        moved: dict[Way, float] = {}
        for made in self.loans:
            for way, size_mb in made.loan.moved_mb(made.over_us).items():
                moved[way] = moved.get(way, 0.0) + size_mb
        return moved

    def _begin(self, spec: ServerSpec) -> _Server:
        def given_up(stream: StreamId, now_us: int) -> None:
            self._over(spec.site, stream, now_us)

        executor = LendingExecutor(spec.executor, given_up)
        server = _Server(spec, executor)
        server.loop = turns(
            executor,
            spec.journal,
            lambda view: self._plan(server, view),
            spec.scheduler.needs,
            spec.options,
            lambda batch, turn: None,
        )
        return server

    def _furthest_behind(self) -> _Server | None:
        running = [server for server in self._servers.values() if server.running]
        return min(running, key=lambda server: (server.executor.now_us, server.spec.site), default=None)

    def _take_turn(self, server: _Server) -> None:
        before = server.state
        server.executor.not_beyond(self._limit_us(server))
        server.state = next(server.loop, None)
        if server.state is None:
            server.state, server.running = before, False
            self.ended_us[server.spec.site] = server.executor.now_us
            return
        if self._has_more_room(before, server.state):
            for other in self._servers.values():
                if other is not server and other.wants:
                    other.wants = False
                    other.executor.ask_again()

    def _limit_us(self, server: _Server) -> int | None:
        """How far a server may go: to the next failure, and little beyond the others."""
        others = [one.executor.now_us for one in self._servers.values() if one.running and one is not server]
        ahead_us = [min(others) + AHEAD_US] if others else []
        return min([*ahead_us, *(failure.at_us for failure in self._failures[:1])], default=None)

    def _has_more_room(self, before: LoopState | None, after: LoopState) -> bool:
        """Whether a server could lend what it could not before: its own labels and profiles are done."""
        return before is not None and before.fleet.preparing and not after.fleet.preparing

    def _plan(self, server: _Server, view: WindowView) -> Plan:
        """The server's own plan, and for what it leaves out whatever another server has room for."""
        server.spec.charge()
        own = _own_part(view)
        elsewhere = {
            stream.stream: _Away(running.option.config, running.elsewhere, "retrains on another server")
            for stream in view.streams
            if (running := stream.running) is not None and running.elsewhere is not None
        }
        for loan in self._borrow(server, own):
            reason = f"retrains on {loan.where}: {loan.reason}"
            elsewhere[loan.offer.stream] = _Away(loan.offer.config, Elsewhere(loan.arrives_us), reason)
            own = without_retraining(own, loan.offer.stream)
        return _trained_elsewhere(server.spec.scheduler.plan(own), elsewhere)

    def _borrow(self, server: _Server, view: WindowView) -> Sequence[Loan]:
        """Loans for what is worth more elsewhere, one by one: each changes what the others are worth."""
        spec, loans = server.spec, list[Loan]()
        if self._policy is None or server.state is None or not spec.crops_may_leave:
            return ()
        crops = {stream.stream: stream.training_crops for stream in server.state.fleet.streams}
        server.wants = False
        while offered := list(offers(spec.site, view, spec.scheduler.plan, crops, self._sizes)):
            loan = self._agree(server.executor.now_us, offered)
            if loan is None:
                server.wants = True
                break
            server.executor.expect(loan.offer.stream, loan.arrives_us)
            loans.append(loan)
            view = without_retraining(view, loan.offer.stream)
        return loans

    def _agree(self, now_us: int, offered: Sequence[Offer]) -> Loan | None:
        """The loan that brings most for what it costs; None where none is worth it."""
        if self._policy is None or not offered:
            return None
        rooms = self._rooms(now_us, offered[0].site)
        loans = [
            loan
            for offer in offered
            for loan in broker(now_us, [offer], rooms, self._links, self._policy, self._seed).loans
        ]
        best = max(loans, key=lambda loan: loan.brings - loan_cost(loan, rooms), default=None)
        if best is not None:
            self._make(best)
        return best

    def _make(self, loan: Loan) -> None:
        made = Made(
            loan, {part.host: Lent(part.share_milli, loan.begins_us, loan.ends_us) for part in loan.parts}
        )
        self.loans.append(made)
        for host, lent in made.lent.items():
            self._servers[host].executor.lend(lent)
        self._servers[loan.offer.site].borrowed[loan.offer.stream] = made

    def _rooms(self, now_us: int, borrower: SiteName) -> list[Room]:
        rooms = []
        for site, server in sorted(self._servers.items()):
            if site == borrower or not server.running or not server.spec.takes_guests:
                continue
            state, options = server.state, server.spec.options
            if state is None or state.fleet.window < 0 or state.fleet.preparing:
                continue
            view = self._view_of(server, state, now_us)
            # Its next preparation, and a quantum for each stream, must fit beside what is lent.
            least_milli = options.preparation_share_milli + len(view.streams) * options.quantum_milli
            most_milli = view.capacity_milli - least_milli
            shares = [share_milli for share_milli in SHARES_MILLI if share_milli <= most_milli]
            if shares and view.streams:
                rooms.append(room(site, view, server.spec.scheduler.plan, shares, STEP_MILLI))
        return rooms

    def _view_of(self, server: _Server, state: LoopState, now_us: int) -> WindowView:
        options = server.spec.options
        now_us = min(max(now_us, server.executor.now_us), state.fleet.window_end_us)
        view = window_view(
            state.fleet, now_us, options, server.spec.scheduler.needs, state.histories, state.phases
        )
        promised_milli = max(server.executor.lent_milli - state.fleet.lent_milli, 0)
        return _own_part(replace(view, capacity_milli=view.capacity_milli - promised_milli))

    def _over(self, site: SiteName, stream: StreamId, now_us: int) -> None:
        """Nobody waits for a loan's weights any more: they are here, or too late, or will never come."""
        made = self._servers[site].borrowed.pop(stream, None)
        if made is None:
            return
        made.ends(ARRIVED if made.loan.arrives_us <= now_us else GIVEN_UP, now_us)

    def _fail(self, failure: Failure) -> None:
        """A server dies: its own loans end, and what it did for others goes on elsewhere, or never comes."""
        dead = self._servers[failure.site]
        dead.running = False
        self.ended_us[failure.site] = failure.at_us
        for made in dead.borrowed.values():
            made.ends(f"{failure.site} died", failure.at_us)
        dead.borrowed.clear()
        for server in self._servers.values():
            for made in list(server.borrowed.values()):
                if failure.site in made.loan.hosts:
                    self._resume(server, made, failure)

    def _resume(self, server: _Server, made: Made, failure: Failure) -> None:
        """The rest of a guest's training goes to another server, from its last snapshot on."""
        made.ends(f"{failure.site} died", failure.at_us)
        stream = made.loan.offer.stream
        del server.borrowed[stream]
        if not server.running:
            return
        loan = self._agree(failure.at_us, [_rest_of(made.loan, failure.at_us)])
        if loan is None:
            server.executor.fail(stream, f"{failure.site} died, and nobody else has room", failure.at_us)
        else:
            server.executor.postpone(stream, loan.arrives_us)


ARRIVED, GIVEN_UP = "arrived", "given up"


@dataclass(frozen=True, slots=True)
class _Away:
    """A retraining on another server, as it stands in its own server's plan."""

    config: RetrainConfig
    elsewhere: Elsewhere
    reason: str


def _own_part(view: WindowView) -> WindowView:
    """The view of a scheduler that knows of no other server."""
    return replace(
        view,
        streams=tuple(
            replace(stream, running=None, retrain_options=())
            if stream.running is not None and stream.running.elsewhere is not None
            else stream
            for stream in view.streams
        ),
        previous=tuple(
            Phase(tuple(_left_alone(one) if one.elsewhere else one for one in phase.assignments))
            for phase in view.previous
        ),
    )


def _left_alone(assignment: Assignment) -> Assignment:
    return replace(assignment, retrain=None, elsewhere=None)


def _trained_elsewhere(plan: Plan, away: Mapping[StreamId, _Away]) -> Plan:
    def changed(assignment: Assignment) -> Assignment:
        found = away.get(assignment.stream)
        if found is None:
            return assignment
        return replace(assignment, retrain=found.config, elsewhere=found.elsewhere, reason=found.reason)

    phases = tuple(Phase(tuple(changed(one) for one in phase.assignments)) for phase in plan.phases)
    return replace(plan, phases=phases)


def _rest_of(loan: Loan, at_us: int) -> Offer:
    """What is left of a loan's training at its last snapshot; at home nothing of it is done any more."""
    offer, (home, _) = loan.offer, loan.came_home(at_us)
    left = offer.epochs - home
    return replace(offer, epochs=left, gpu_s=offer.gpu_s * left / offer.epochs, at_home=0.0, now_us=at_us)
