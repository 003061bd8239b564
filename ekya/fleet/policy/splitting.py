"""Splits a retraining over several servers: shares (ours), and parts of the crops (Deep-Edge).

Shares are chosen by price. The lending servers lose L accuracy a second in total and train at a total rate S,
and a second of waiting costs the offer's gain G, so the minimum of (G + L) / S is best. Dinkelbach's method
finds it: for a given quotient μ each server independently takes the share with the least loss − μ · rate.
This ignores waiting at the parameter server and that steps are whole. Deep-Edge's solver accounts for both:
it distributes the crops, and leaves out servers without which an epoch is shorter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import EdgeTask, Solver
from ekya.fleet.policy.fitted import Fitted
from ekya.fleet.policy.loans import Links, Loan, alone, loan_cost
from ekya.fleet.policy.market import NO_ROOM, Deal, Market, key_of, worth
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import BackgroundApp, Node, NodeState
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.spreading import Spread, inferring, late_streams

Table = Mapping[SiteName, Sequence[tuple[float, float]]]
"""Loss and rate at 1, 2, ... units, by server."""

_TRIED = 3
"""Number of the most promising spreads that are evaluated."""


@dataclass(frozen=True, slots=True)
class InOrderOfArrival:
    """A ``Decider`` that spreads one retraining after the other over servers without a guest, as Deep-Edge.

    A server is a worker at the share that is worth lending, and its own streams' inference is its background
    application with a deadline. Where only one server is worth it, the retraining goes there. What runs
    stays as it is.

    Attributes:
        solver: distributes the crops.
        fitted: models of profiled hosts; where they do not hold, times follow from the offer.
    """

    solver: Solver
    fitted: Fitted | None = None

    def __call__(self, market: Market) -> Deal:
        """Returns loans for the open offers."""
        taken = {host for one in market.running for host in one.loan.hosts}
        rooms = [room for room in market.free if room.site not in taken]
        splitter, made, refused = Splitter(self.solver, with_deadlines=True), list[Loan](), {}
        for offer in sorted(market.offers, key=lambda offer: (offer.now_us, key_of(offer))):
            seen, unknown = self._seen(rooms, offer)
            loan = splitter(market.now_us, offer, seen, market.links) or best_alone(
                market.now_us, offer, keeping_up(seen), market.links
            )
            if loan is None or worth(loan, rooms) <= 0.0:
                refused[key_of(offer)] = _why_not(loan, rooms)
                continue
            if guessed := unknown.intersection(loan.hosts):
                told = f"nothing like it was profiled on {' and '.join(sorted(guessed))}"
                loan = replace(loan, reason=f"{loan.reason}; {told}")
            made.append(loan)
            rooms = [room for room in rooms if room.site not in loan.hosts]
        return Deal(tuple(made), refused=refused)

    def _seen(self, rooms: Sequence[Room], offer: Offer) -> tuple[list[Room], set[SiteName]]:
        """Returns the rooms as the models see them, and the sites where these do not hold for an offer."""
        if self.fitted is None:
            return list(rooms), set()
        seen = {room.site: self.fitted.seen(room, offer) for room in rooms}
        found = (seen[room.site] or room for room in rooms)
        return [room for room in found if room.loss], {site for site, room in seen.items() if room is None}


def _why_not(loan: Loan | None, rooms: Sequence[Room]) -> str:
    if loan is None:
        return NO_ROOM
    return f"{loan.where} would cost {loan_cost(loan, rooms):.3g} for the {loan.brings:.3g} that it brings"


def best_alone(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links) -> Loan | None:
    """Returns the loan on one server with the highest worth; None where no other server has capacity."""
    loans = (
        alone(now_us, offer, room, units, links, "what it brings is most above what it costs there")
        for room in sorted(rooms, key=lambda room: room.site)
        if room.site != offer.site
        for units in range(1, len(room.loss) + 1)
    )
    return max(loans, key=lambda loan: worth(loan, rooms), default=None)


@dataclass(frozen=True, slots=True)
class Splitter:
    """Finds the loan over several servers with the highest worth.

    Attributes:
        solver: distributes the crops.
        with_deadlines: whether inference of the hosts' streams has deadlines, besides its price.
    """

    # The shares are chosen by price already, so the solver does not throttle workers.
    solver: Solver = field(default_factory=lambda: Joint(shares_milli=(FULL_GPU_MILLI,)))
    with_deadlines: bool = False

    def __call__(
        self, now_us: int, offer: Offer, rooms: Sequence[Room], links: Links, least: float = 0.0
    ) -> Loan | None:
        """Returns the best loan; None where none is worth more than ``least``."""
        best: Loan | None = None
        for spread in promising(now_us, offer, rooms, links):
            if _at_most(now_us, spread) <= least:
                break
            loan = self._dealt(now_us, spread)
            if loan is not None and worth(loan, rooms) > least:
                best, least = loan, worth(loan, rooms)
        return best

    def _dealt(self, now_us: int, spread: Spread) -> Loan | None:
        """Returns the loan of a spread; None where one host is left or the parameter server has no crops."""
        batch = spread.offer.config.batch_size
        nodes = tuple(_worker(spread.rooms[site], self.with_deadlines) for site in sorted(spread.units))
        limits = EdgeLimits(batch_min=min(2, batch), batch_max=batch)
        plan = self.solver(EdgeTask(nodes, NodeState(), spread.offer.crops, spread, limits))
        crops = {SiteName(part.node): part.chunks for part in plan.parts}
        if spread.parameter_server not in crops or len(crops) < 2:
            return None
        reason = f"{dealt_in_words(crops)}, so that an epoch takes {plan.epoch_s:.1f} s"
        return spread.loan(now_us, crops, reason)


def _worker(room: Room, with_deadlines: bool) -> Node:
    """Returns a server as Deep-Edge's worker, with the utilisation and deadlines of its own inference."""
    if not with_deadlines:
        return Node(NodeName(room.site), room.site, str(room.site))
    apps = tuple(BackgroundApp(stream.stream, stream.limit_s) for stream in room.inference)
    return Node(NodeName(room.site), room.site, str(room.site), state=inferring(room), apps=apps)


def keeping_up(rooms: Sequence[Room]) -> list[Room]:
    """Returns the rooms cut to the units beside which the servers' own streams meet their deadlines."""

    def units(room: Room) -> int:
        shares = range(1, len(room.loss) + 1)
        good = (count for count in shares if not late_streams(room, count * room.step_milli))
        return max(good, default=0)

    return [replace(room, loss=room.loss[:count]) for room in rooms if (count := units(room))]


def dealt_in_words(crops: Mapping[SiteName, int]) -> str:
    """Returns the crops of each host in words."""
    told = ", ".join(f"{host} {count}" for host, count in sorted(crops.items()))
    return f"of {sum(crops.values())} crops {told}"


def promising(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links) -> list[Spread]:
    """Returns the spreads with the highest upper bounds, best first."""
    return sorted(spreads(offer, rooms, links), key=lambda spread: -_at_most(now_us, spread))[:_TRIED]


def spreads(offer: Offer, rooms: Sequence[Room], links: Links) -> Iterator[Spread]:
    """Yields spreads for each site of the parameter server and each time by which hosts are ready."""
    others = {
        room.site: room for room in sorted(rooms, key=lambda room: room.site) if room.site != offer.site
    }
    ready_us = {site: links.takes_us(offer.site, site, offer.sent_mb(site)) for site in others}
    for site in others:
        for by_us in sorted({at_us for at_us in ready_us.values() if at_us >= ready_us[site]}):
            there = {host: room for host, room in others.items() if ready_us[host] <= by_us}
            units = worth_lending(offer.gain, table_of(offer, there, links, site), site)
            if len(units) > 1 and max(ready_us[host] for host in units) == by_us:
                yield Spread(offer, links, {host: there[host] for host in units}, units, site)


def table_of(offer: Offer, rooms: Mapping[SiteName, Room], links: Links, parameter_server: SiteName) -> Table:
    """Returns losses, and rates in parts of the whole retraining per second without waiting for others."""
    spread = Spread(offer, links, rooms, {}, parameter_server)

    def row(room: Room) -> list[tuple[float, float]]:
        exchange_s = spread.exchange_s(room.site) / offer.config.batch_size
        whole = offer.epochs * offer.crops
        return [
            (loss, 1.0 / (whole * (spread.crop_s(room.site, units) + exchange_s)))
            for units, loss in enumerate(room.loss, 1)
        ]

    return {site: row(room) for site, room in rooms.items()}


def worth_lending(gain: float, table: Table, parameter_server: SiteName) -> dict[SiteName, int]:
    """Returns the units of each lending server that minimise (gain + losses) / rates.

    Args:
        gain: per second.
        table: of all candidates.
        parameter_server: site of the parameter server, which always lends.
    """
    chosen = {site: len(row) for site, row in table.items()}
    while True:
        price = _price(gain, table, chosen)
        wanted = {site: _taken(row, price, site == parameter_server) for site, row in table.items()}
        wanted = {site: units for site, units in wanted.items() if units}
        if not _price(gain, table, wanted) < price:
            return chosen
        chosen = wanted


def _price(gain: float, table: Table, units: Mapping[SiteName, int]) -> float:
    """Returns the cost of the whole retraining at these shares, including its stream's waiting."""
    lost, rate = (sum(table[site][count - 1][of] for site, count in units.items()) for of in (0, 1))
    return (gain + lost) / rate


def _taken(row: Sequence[tuple[float, float]], price: float, certainly: bool) -> int:
    """Returns the units with the least loss − price · rate; 0 where lending nothing is better."""
    values = [loss - price * rate for loss, rate in row]
    best = min(range(len(row)), key=values.__getitem__)
    return best + 1 if certainly or values[best] < 0.0 else 0


def _at_most(now_us: int, spread: Spread) -> float:
    """Returns an upper bound of the worth of a loan by these servers."""
    offer, links = spread.offer, spread.links
    table = table_of(offer, spread.rooms, links, spread.parameter_server)
    model_mb = {site: offer.sent_mb(site, 0.0, validates=False) for site in spread.units}
    model_us = max(links.takes_us(offer.site, *way) for way in model_mb.items())
    away_us = model_us + links.takes_us(spread.parameter_server, offer.site, offer.back_mb)
    return offer.brings(now_us + away_us) - _price(offer.gain, table, spread.units)
