"""Rooms of many servers and the ways to them as arrays, for all offers of a market.

Arrays have H servers in the order of their sites, and K units of share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
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
        sent_mb = np.full(len(self._hosts), offer.sent_mb())
        sent_mb[[host == offer.held_by for host in self._hosts]] = 0.0
        return np.asarray(sent_mb * self._s_per_mb(offer.site)[0])

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


@dataclass(frozen=True)
class Lenders:
    """Rooms as arrays.

    Attributes:
        rooms: in the order of their sites.
        links: between the servers.
        loss: a second, while 1, 2, ... units are lent; infinite where a server has fewer; K x H.
        speed: of a training there, relative to a whole GPU of the borrower; K x H.
    """

    rooms: tuple[Room, ...]
    links: Links
    loss: Floats
    speed: Floats

    @classmethod
    def from_rooms(cls, rooms: Iterable[Room], links: Links) -> "Lenders":
        """Converts rooms to arrays; those without a unit are left out."""
        rooms = tuple(sorted((room for room in rooms if room.loss), key=lambda room: room.site))
        loss = np.full((max((len(room.loss) for room in rooms), default=0), len(rooms)), np.inf)
        speed = np.ones_like(loss)
        for at, room in enumerate(rooms):
            shares = [units * room.step_milli for units in range(1, len(room.loss) + 1)]
            loss[: len(shares), at] = room.loss
            speed[: len(shares), at] = [room.speed.speed_at(share) for share in shares]
        return cls(rooms, links, loss, speed)

    @cached_property
    def ways(self) -> Ways:
        """Ways from the homes of offers and back."""
        return Ways(self.links, [room.site for room in self.rooms])

    @cached_property
    def late_us(self) -> Ints:
        """Expected delay of trainings at each server; H."""
        return np.array([room.late_us for room in self.rooms], dtype=np.int64)

    def other_than_home(self, offer: TrainingOffer) -> NDArray[np.bool_]:
        """Returns which of them are other servers than the offer's own; H."""
        return np.array([room.site != offer.site for room in self.rooms], dtype=np.bool_)
