"""Transfers between the home of an offer and many servers, as arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import TrainingOffer

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
