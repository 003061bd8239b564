"""Splits a retraining over several servers, by the shares that ``prices`` finds.

Prices ignore waiting at the parameter server and that steps are whole. Deep-Edge's solver accounts for both:
it distributes the crops, and leaves out servers without which an epoch is shorter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import EdgeTask, Solver
from ekya.fleet.policy.loans import Loan, alone, loan_cost
from ekya.fleet.policy.market import NO_ROOM, Deal, Market, key_of, worth
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import BackgroundApp, Node, NodeName, NodeState, SiteName
from ekya.fleet.policy.prices import Hosts, Ints, Prices, brought, in_us
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.spreading import Spread, inferring, late_streams

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
    """

    solver: Solver

    def __call__(self, market: Market) -> Deal:
        """Returns loans for the open offers."""
        taken = {host for one in market.running for host in one.hosts}
        rooms = [room for room in market.free if room.site not in taken]
        hosts, quick = (
            Hosts.from_rooms(rooms, market.links),
            Hosts.from_rooms(keeping_up(rooms), market.links),
        )
        splitter, made, refused = Splitter(self.solver, with_deadlines=True), list[Loan](), {}
        for offer in sorted(market.offers, key=lambda offer: (offer.now_us, key_of(offer))):
            loan = splitter(market.now_us, offer, hosts) or best_alone(market.now_us, offer, quick)
            if loan is None or worth(loan, hosts.rooms) <= 0.0:
                refused[key_of(offer)] = _why_not(loan, hosts.rooms)
                continue
            made.append(loan)
            hosts, quick = hosts.without_sites(loan.hosts), quick.without_sites(loan.hosts)
        return Deal(tuple(made), refused=refused)


def _why_not(loan: Loan | None, rooms: Sequence[Room]) -> str:
    if loan is None:
        return NO_ROOM
    return f"{loan.where} would cost {loan_cost(loan, rooms):.3g} for the {loan.brings:.3g} that it brings"


def best_alone(now_us: int, offer: TrainingOffer, hosts: Hosts) -> Loan | None:
    """Returns the loan on one server with the highest worth; None where no other server has capacity."""
    others = hosts.other_than_home(offer)
    if not others.any():
        return None
    begins_us = now_us + in_us(hosts.ways.there_s(offer))
    ends_us = begins_us + hosts.late_us + in_us(offer.gpu_s / hosts.speed)
    brings = brought(offer, ends_us + in_us(hosts.ways.back_s(offer)))
    there = others & np.isfinite(hosts.loss)
    costs = (ends_us - begins_us) / US_PER_S * np.where(there, hosts.loss, 0.0)
    worths = np.where(there, brings - costs, -inf)
    at, units = divmod(int(worths.T.argmax()), len(worths))
    reason = "what it brings is most above what it costs there"
    return alone(now_us, offer, hosts.rooms[at], units + 1, hosts.links, reason)


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

    def __call__(self, now_us: int, offer: TrainingOffer, hosts: Hosts, least: float = 0.0) -> Loan | None:
        """Returns the best loan; None where none is worth more than ``least``."""
        best: Loan | None = None
        for most, spread in promising(now_us, Prices(offer, hosts), least):
            if most <= least:
                break
            loan = self._dealt(now_us, spread)
            if loan is not None and (value := worth(loan, hosts.rooms)) > least:
                best, least = loan, value
        return best

    def _dealt(self, now_us: int, spread: Spread) -> Loan | None:
        """Returns the loan of a spread; None where one host is left or the parameter server has no crops."""
        batch = spread.offer.config.batch_size
        nodes = tuple(_worker(spread.rooms[site], self.with_deadlines) for site in sorted(spread.units))
        limits = EdgeLimits(batch_min=min(2, batch), batch_max=batch)
        plan = self.solver(EdgeTask(nodes, NodeState(), spread.offer.crops, spread, limits, spread.updates_s))
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


def promising(now_us: int, prices: Prices, least: float) -> list[tuple[float, Spread]]:
    """Returns the spreads with the highest upper bounds of their worth, best first, with these bounds.

    Spreads whose bound is not above ``least`` may be missing. A parameter server's bound where all may lend,
    as soon as it is ready itself, holds for each of its spreads.
    """
    offer, hosts = prices.offer, prices.hosts
    away_us = in_us(hosts.ways.model_s(offer)) + in_us(hosts.ways.back_s(offer))
    brings = brought(offer, now_us + away_us)
    servers = prices.possible_servers(float(brings.max(initial=-inf)) - least)
    if not servers.size:
        return []
    bounds = brings[servers] - prices.lent_units(servers, hosts.other_than_home(offer)[:, None])[1]
    found = list[tuple[float, int, Ints]]()
    for at in np.argsort(-bounds, kind="stable"):
        server, bound = int(servers[at]), float(bounds[at])
        if len(found) == _TRIED and (-bound, server) > found[-1][:2]:
            break
        more = spreads(now_us, prices, server, float(brings[server]) - least)
        found = sorted([*found, *((-most, server, units) for most, units in more)], key=lambda one: one[:2])
        if len(found := found[:_TRIED]) == _TRIED:
            least = max(least, -found[-1][0])
    return [(-cost, spread_of(prices, server, units)) for cost, server, units in found]


def spreads(now_us: int, prices: Prices, server: int, dearest: float = inf) -> Iterator[tuple[float, Ints]]:
    """Yields an upper bound of the worth and each host's units for each time by which hosts are ready.

    Args:
        now_us: time of the agreement.
        prices: of the offer.
        server: index of the parameter server's host.
        dearest: spreads with a higher price may be missing.
    """
    offer, hosts = prices.offer, prices.hosts
    ready_us, others = in_us(hosts.ways.there_s(offer)), hosts.other_than_home(offer)
    by_us = np.unique(ready_us[others & (ready_us >= ready_us[server])])
    may = others[:, None] & (ready_us[:, None] <= by_us)
    if dearest < inf:
        kept = prices.cheaper_cases(server, may, dearest)
        by_us, may = by_us[kept], may[:, kept]
    units, price = prices.lent_units(np.full(len(by_us), server), may)
    lends = units > 0
    model_us = np.where(lends, in_us(hosts.ways.model_s(offer))[:, None], 0).max(axis=0)
    back_us = in_us(hosts.ways.back_s(offer))[server]
    most = brought(offer, now_us + model_us + back_us) - price
    last_us = np.where(lends, ready_us[:, None], -1).max(axis=0)
    for case in np.flatnonzero((lends.sum(axis=0) > 1) & (last_us == by_us)):
        yield float(most[case]), units[:, case]


def spread_of(prices: Prices, server: int, units: Ints) -> Spread:
    """Returns a spread of the hosts that lend units."""
    hosts = prices.hosts
    lent = {room.site: (room, int(count)) for room, count in zip(hosts.rooms, units, strict=True) if count}
    return Spread(
        prices.offer,
        hosts.links,
        {site: room for site, (room, _) in lent.items()},
        {site: count for site, (_, count) in lent.items()},
        hosts.rooms[server].site,
    )
