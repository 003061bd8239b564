"""Which servers do a retraining together, at which shares (ours), and who does how much of it (Deep-Edge).

How much each server lends is a question of price. Servers that lend lose L accuracy a second and train at a
rate S, and a second of waiting costs the offer's gain G, so the least of (G + L) / S is best. Dinkelbach's
method finds it: for a known quotient μ every server by itself takes the share with the least of loss − μ
rate. That leaves out who waits for whom and that steps are whole. Deep-Edge's solver knows that: it deals
the crops, and leaves out whom an epoch is shorter without.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.brokering import alone, worth
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import EdgeTask, Solver
from ekya.fleet.policy.loans import Links, Loan
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import Node, NodeState
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.spreading import Spread

Table = Mapping[SiteName, Sequence[tuple[float, float]]]
"""By server, what it loses and its rate at 1, 2, ... units."""

_TRIED = 3
"""Of all sites of the parameter server so many are worked out, the most promising ones."""


def best_alone(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links) -> Loan | None:
    """The loan by one server that brings most for what it costs; None where nobody else has room."""
    loans = (
        alone(now_us, offer, room, units, links, "what it brings is most above what it costs there")
        for room in sorted(rooms, key=lambda room: room.site)
        if room.site != offer.site
        for units in range(1, len(room.loss) + 1)
    )
    return max(loans, key=lambda loan: worth(loan, rooms), default=None)


@dataclass(frozen=True, slots=True)
class Splitter:
    """Finds the loan by several servers that brings most for what it costs.

    Attributes:
        solver: deals the crops.
    """

    # Who is held back, and to what, is decided by the price already.
    solver: Solver = field(default_factory=lambda: Joint(shares_milli=(FULL_GPU_MILLI,)))

    def __call__(
        self, now_us: int, offer: Offer, rooms: Sequence[Room], links: Links, least: float = 0.0
    ) -> Loan | None:
        """The best; None where none is worth more than ``least``."""
        best: Loan | None = None
        for spread in promising(now_us, offer, rooms, links):
            if _at_most(now_us, spread) <= least:
                break
            loan = self._dealt(now_us, spread)
            if loan is not None and worth(loan, rooms) > least:
                best, least = loan, worth(loan, rooms)
        return best

    def _dealt(self, now_us: int, spread: Spread) -> Loan | None:
        """None where one server alone would be faster."""
        batch = spread.offer.config.batch_size
        nodes = tuple(Node(NodeName(site), site, str(site)) for site in sorted(spread.units))
        limits = EdgeLimits(batch_min=min(2, batch), batch_max=batch)
        plan = self.solver(EdgeTask(nodes, NodeState(), spread.offer.crops, spread, limits))
        crops = {SiteName(part.node): part.chunks for part in plan.parts}
        if spread.server not in crops or len(crops) < 2:
            return None
        reason = f"{dealt_in_words(crops)}, so that an epoch takes {plan.epoch_s:.1f} s"
        return spread.loan(now_us, crops, reason)


def dealt_in_words(crops: Mapping[SiteName, int]) -> str:
    """Who goes through how many, for people."""
    told = ", ".join(f"{host} {count}" for host, count in sorted(crops.items()))
    return f"of {sum(crops.values())} crops {told}"


def promising(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links) -> list[Spread]:
    """Those that could bring most, best first."""
    return sorted(spreads(offer, rooms, links), key=lambda spread: -_at_most(now_us, spread))[:_TRIED]


def spreads(offer: Offer, rooms: Sequence[Room], links: Links) -> Iterator[Spread]:
    """Hosts and shares, for each site of the parameter server and each time by which hosts are ready."""
    others = {
        room.site: room for room in sorted(rooms, key=lambda room: room.site) if room.site != offer.site
    }
    ready_us = {site: links.takes_us(offer.site, site, offer.sent_mb(site)) for site in others}
    for server in others:
        for by_us in sorted({at_us for at_us in ready_us.values() if at_us >= ready_us[server]}):
            there = {site: room for site, room in others.items() if ready_us[site] <= by_us}
            units = worth_lending(offer.gain, table_of(offer, there, links, server), server)
            if len(units) > 1 and max(ready_us[site] for site in units) == by_us:
                yield Spread(offer, links, {site: there[site] for site in units}, units, server)


def table_of(offer: Offer, rooms: Mapping[SiteName, Room], links: Links, server: SiteName) -> Table:
    """Losses, and rates in parts of the whole retraining a second, where nobody waits for anybody."""
    spread = Spread(offer, links, rooms, {}, server)

    def row(room: Room) -> list[tuple[float, float]]:
        exchange_s = spread.exchange_s(room.site) / offer.config.batch_size
        whole = offer.epochs * offer.crops
        return [
            (loss, 1.0 / (whole * (spread.crop_s(room.site, units) + exchange_s)))
            for units, loss in enumerate(room.loss, 1)
        ]

    return {site: row(room) for site, room in rooms.items()}


def worth_lending(gain: float, table: Table, server: SiteName) -> dict[SiteName, int]:
    """Units of each server that lends, with the least of (gain + losses) / rates.

    Args:
        gain: a second's.
        table: of all servers that could.
        server: who certainly does.
    """
    chosen = {site: len(row) for site, row in table.items()}
    while True:
        price = _price(gain, table, chosen)
        wanted = {site: _taken(row, price, site == server) for site, row in table.items()}
        wanted = {site: units for site, units in wanted.items() if units}
        if not _price(gain, table, wanted) < price:
            return chosen
        chosen = wanted


def _price(gain: float, table: Table, units: Mapping[SiteName, int]) -> float:
    """What the whole retraining costs at these shares, its stream's waiting for it included."""
    lost, rate = (sum(table[site][count - 1][of] for site, count in units.items()) for of in (0, 1))
    return (gain + lost) / rate


def _taken(row: Sequence[tuple[float, float]], price: float, certainly: bool) -> int:
    """The units with the least of loss − price · rate; 0 where nothing is better."""
    values = [loss - price * rate for loss, rate in row]
    best = min(range(len(row)), key=values.__getitem__)
    return best + 1 if certainly or values[best] < 0.0 else 0


def _at_most(now_us: int, spread: Spread) -> float:
    """What no loan by these servers is worth more than."""
    offer, links = spread.offer, spread.links
    table = table_of(offer, spread.rooms, links, spread.server)
    model_mb = {site: offer.sent_mb(site, 0.0, validates=False) for site in spread.units}
    model_us = max(links.takes_us(offer.site, *way) for way in model_mb.items())
    away_us = model_us + links.takes_us(spread.server, offer.site, offer.back_mb)
    return offer.brings(now_us + away_us) - _price(offer.gain, table, spread.units)
