"""Shares by price: how much each server lends to one retraining (ours; no paper has this).

The lending servers lose L accuracy a second in total and train at a total rate S, and a second of waiting
costs the offer's gain G, so the minimum of (G + L) / S is best. Dinkelbach's method finds it: for a given
quotient μ each server independently takes the share with the least loss − μ · rate. This ignores waiting at
the parameter server and that steps are whole.

Arrays have H servers in the order of their sites, K units of share, and C cases: a site of the parameter
server, and the servers that may lend.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.assignment import SERVER_PART
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Ways:
    """Times of the ways to H servers and back; links are looked up once for each home."""

    def __init__(self, links: Links, hosts: Sequence[SiteName]) -> None:
        self._links, self._hosts = links, hosts
        self._known: dict[SiteName, tuple[Floats, Floats]] = {}

    def there_s(self, offer: TrainingOffer) -> Floats:
        """Returns the seconds until an offer's crops and model are at each host; H."""
        if offer.crops_there_mb:
            sent_mb = np.array([offer.sent_mb(host) for host in self._hosts])
        else:
            sent_mb = np.full(len(self._hosts), offer.sent_mb(offer.site))
        return np.asarray(sent_mb * self._s_per_mb(offer.site)[0])

    def model_s(self, offer: TrainingOffer) -> Floats:
        """Returns the seconds until its model is at each host; H."""
        model_mb = np.full(len(self._hosts), offer.model_mb)
        model_mb[[host in offer.crops_there_mb for host in self._hosts]] = 0.0
        return np.asarray(model_mb * self._s_per_mb(offer.site)[0])

    def back_s(self, offer: TrainingOffer) -> Floats:
        """Returns the seconds of a snapshot's way home from each host; H."""
        return np.asarray(offer.back_mb * self._s_per_mb(offer.site)[1])

    def _s_per_mb(self, home: SiteName) -> tuple[Floats, Floats]:
        if home not in self._known:
            there = np.array([self._links.s_per_mb(home, host) for host in self._hosts])
            back = np.array([self._links.s_per_mb(host, home) for host in self._hosts])
            self._known[home] = there, back
        return self._known[home]


def in_us(seconds: Floats) -> Ints:
    """Rounds to microseconds, as ``Links.takes_us``."""
    return np.asarray(np.rint(seconds * US_PER_S), dtype=np.int64)


def brought(offer: TrainingOffer, arrives_us: Ints) -> Floats:
    """Returns ``TrainingOffer.gain_if_arrives`` for many times."""
    left_s = np.maximum(offer.until_us - offer.serves_after_us - arrives_us, 0) / US_PER_S
    return np.asarray(offer.gain * left_s - offer.at_home * us_to_seconds(offer.until_us - offer.now_us))


Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Hosts:
    """Rooms as arrays, for all offers of a market.

    Attributes:
        rooms: in the order of their sites.
        links: between the servers.
        loss: a second, while 1, 2, ... units are lent; infinite where a server has fewer; K x H.
        speed: of a training there, relative to a whole GPU of the borrower; K x H.
        served: the same beside the parameter server; K x H.
        s_per_mb: of the links from the row's to the column's server; H x H.
    """

    rooms: tuple[Room, ...]
    links: Links
    loss: Floats
    speed: Floats
    served: Floats
    s_per_mb: Floats

    @classmethod
    def from_rooms(cls, rooms: Iterable[Room], links: Links) -> "Hosts":
        """Converts rooms to arrays; those without a unit are left out."""
        rooms = tuple(sorted((room for room in rooms if room.loss), key=lambda room: room.site))
        loss = np.full((max((len(room.loss) for room in rooms), default=0), len(rooms)), np.inf)
        speed, served = np.ones_like(loss), np.ones_like(loss)
        for at, room in enumerate(rooms):
            shares = [units * room.step_milli for units in range(1, len(room.loss) + 1)]
            loss[: len(shares), at] = room.loss
            speed[: len(shares), at] = [room.speed.speed_at(share) for share in shares]
            served[: len(shares), at] = [
                room.speed.speed_at(round((1.0 - SERVER_PART) * share)) for share in shares
            ]
        sites = [room.site for room in rooms]
        s_per_mb = np.array([[links.s_per_mb(one, other) for other in sites] for one in sites])
        return cls(rooms, links, loss, speed, served, s_per_mb.reshape(len(rooms), len(rooms)))

    def without_sites(self, gone: Collection[SiteName]) -> "Hosts":
        """Returns the others."""
        stay = [at for at, room in enumerate(self.rooms) if room.site not in gone]
        return Hosts(
            tuple(self.rooms[at] for at in stay),
            self.links,
            self.loss[:, stay],
            self.speed[:, stay],
            self.served[:, stay],
            self.s_per_mb[np.ix_(stay, stay)],
        )

    @cached_property
    def ways(self) -> Ways:
        """Ways from the homes of offers and back."""
        return Ways(self.links, [room.site for room in self.rooms])

    @cached_property
    def late_us(self) -> Ints:
        """Expected delay of trainings at each server; H."""
        return np.array([room.late_us for room in self.rooms], dtype=np.int64)

    @cached_property
    def nearest_s_per_mb(self) -> Floats:
        """Least time of a megabyte to another server and back; H, infinite where there is only one."""
        both = self.s_per_mb + self.s_per_mb.T
        return np.asarray((both + np.diag(np.full(len(both), np.inf))).min(axis=1, initial=np.inf))

    def other_than_home(self, offer: TrainingOffer) -> Bools:
        """Returns which of them are other servers than the offer's own; H."""
        return np.array([room.site != offer.site for room in self.rooms], dtype=np.bool_)


class Prices:
    """Losses and rates of one retraining, in parts of the whole per second, without waiting for others."""

    def __init__(self, offer: TrainingOffer, hosts: Hosts) -> None:
        self.offer, self.hosts = offer, hosts
        self._crop_s = offer.gpu_s / (offer.epochs * offer.crops) / hosts.speed
        self._served_s = offer.gpu_s / (offer.epochs * offer.crops) / hosts.served

    def possible_servers(self, most: float) -> Ints:
        """Returns the parameter servers with which a price below ``most`` is not ruled out.

        A price is below it if the gain and the sum of loss − most · rate of all servers is negative. For the
        bound each of the others exchanges over its best link.
        """
        hosts, others = self.hosts, self.hosts.other_than_home(self.offer)
        exchange_s = np.maximum(self.offer.trained_mb * hosts.nearest_s_per_mb - 1 / US_PER_S, 0.0)
        rate = self._rate(self._crop_s, exchange_s)
        own = (hosts.loss - most * self._rate(self._served_s, 0.0)).min(axis=0, initial=np.inf)
        beside = (hosts.loss - most * rate).min(axis=0, initial=0.0)[others].sum()
        # The tolerance, here and below, covers rounding errors of the bound.
        low = self.offer.gain * (1.0 - 1e-9) + own + beside
        return np.flatnonzero(others & (low < 0.0))

    def lent_units(self, servers: Ints, may: Bools) -> tuple[Ints, Floats]:
        """Returns the units of share that minimise the price, and the price.

        Args:
            servers: index of the parameter server's host, which always lends; C.
            may: hosts that may lend; H x C, or H x 1.
        """
        return worth_lending(self.offer.gain, self.hosts.loss, self._rates(servers), servers, may)

    def cheaper_cases(self, server: int, may: Bools, most: float) -> Bools:
        """Returns for which hosts, H x C, a parameter server's price below ``most`` is not ruled out; C."""
        costs = (self.hosts.loss - most * self._rates(np.array([server]))[:, :, 0]).min(axis=0)
        own, costs = costs[server], np.minimum(costs, 0.0)
        costs[server] = own
        return np.asarray(self.offer.gain * (1.0 - 1e-9) + costs @ may < 0.0)

    def _rates(self, servers: Ints) -> Floats:
        """Returns the rates at 1, 2, ... units with some parameter servers; K x H x C."""
        there_us, back_us = (
            in_us(self.offer.trained_mb * way[:, servers])
            for way in (self.hosts.s_per_mb, self.hosts.s_per_mb.T)
        )
        rate = self._rate(self._crop_s[:, :, None], (there_us + back_us) / US_PER_S)
        rate[:, servers, np.arange(len(servers))] = self._rate(self._served_s, 0.0)[:, servers]
        return rate

    def _rate(self, crop_s: Floats, exchange_s: Floats | float) -> Floats:
        whole = self.offer.epochs * self.offer.crops
        return np.asarray(1.0 / (whole * (crop_s + exchange_s / self.offer.config.batch_size)))


def worth_lending(gain: float, loss: Floats, rate: Floats, servers: Ints, may: Bools) -> tuple[Ints, Floats]:
    """Returns the units of each server that minimise (gain + losses) / rates, and the minimum.

    Args:
        gain: per second.
        loss: at 1, 2, ... units, infinite where a server has fewer; K x H.
        rate: at the same units; K x H x C.
        servers: index of the parameter server's host, which always lends; C.
        may: servers that may lend; H x C, or H x 1.
    """
    own = np.arange(len(may))[:, None] == servers
    units = np.where(may, np.isfinite(loss).sum(axis=0)[:, None], np.zeros_like(servers))
    hosts, cases = np.ogrid[: units.shape[0], : units.shape[1]]
    price = _price(gain, loss[units - 1, hosts], rate[units - 1, hosts, cases], units > 0)
    while True:
        least, best = np.full(units.shape, np.inf), np.zeros_like(units)
        lost, rates = np.zeros(units.shape), np.ones(units.shape)
        for count, (loss_there, rate_there) in enumerate(zip(loss[:, :, None], rate, strict=True), 1):
            value = loss_there - price * rate_there
            lower = value < least
            least, best = np.where(lower, value, least), np.where(lower, count, best)
            lost, rates = np.where(lower, loss_there, lost), np.where(lower, rate_there, rates)
        lends = may & (own | (least < 0.0))
        smaller = _price(gain, lost, rates, lends)
        better = smaller < price
        if not better.any():
            return units, price
        units, price = np.where(better, np.where(lends, best, 0), units), np.where(better, smaller, price)


def _price(gain: float, loss: Floats, rate: Floats, lends: Bools) -> Floats:
    """Returns the cost of the whole retraining at these losses and rates, with its stream's waiting; C."""
    # Unlike a sum, a cumulative one adds in the order of servers.
    lost, rates = (np.where(lends, each, 0.0).cumsum(axis=0)[-1] for each in (loss, rate))
    return np.asarray((gain + lost) / rates)
