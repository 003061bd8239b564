"""Our tier: units of share go where they are worth most.

All offers compete for all spare capacity. The step that adds most worth per unit is taken, again and again:
an offer gets a server and a share, or a share grows on its server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.lenders import Lenders
from ekya.fleet.policy.loans import Loan, loan_at, loan_cost
from ekya.fleet.policy.market import NO_ROOM, Deal, Key, Market, key_of, worth_it
from ekya.fleet.policy.offers import TrainingOffer


@dataclass(frozen=True, slots=True)
class MostPerUnit:
    """A ``Decider``; what runs stays as it is."""

    def __call__(self, market: Market) -> Deal:
        """Returns loans for the open offers."""
        offers, hosts = sorted(market.offers, key=key_of), Lenders.from_rooms(market.free, market.links)
        if not offers or not hosts.rooms:
            return Deal(refused={key_of(offer): NO_ROOM for offer in offers})
        shares = _Shares(market.now_us, offers, hosts)
        made, refused = worth_it(shares.loans().values(), hosts.rooms, shares.why_not())
        return Deal(made, refused=refused)


class _Shares:
    """Tables of all offers, servers and units, and the state of the search: O x S x K arrays.

    Attributes:
        brings: accuracy times seconds, with k + 1 units; minus infinity at home.
        held_s: time for which the share is held.
        loss: a second, of a server that lends 0, 1, ... units; infinite where it has fewer; S x (K + 1).
        taken: units of each server; S.
        site, units, value: of each offer's loan; O. -1, 0 and 0 where it has none.
        best, step: the largest gain in worth per unit and the units with which it comes; O x S.
    """

    def __init__(self, now_us: int, offers: Sequence[TrainingOffer], hosts: Lenders) -> None:
        self._now_us, self._offers, self._hosts = now_us, offers, hosts
        rooms = hosts.rooms
        self.loss = np.vstack([np.zeros(len(rooms)), hosts.loss]).T
        # The transfers to a server and back, and the time until weights serve; O x S.
        way_s = np.array(
            [
                hosts.ways.there_s(offer) + hosts.ways.back_s(offer) + us_to_seconds(offer.serves_after_us)
                for offer in offers
            ]
        )
        gpu_s, gain, at_home, left_s = np.array(
            [
                (offer.gpu_s, offer.gain, offer.at_home, (offer.until_us - now_us) / US_PER_S)
                for offer in offers
            ]
        ).T
        self.held_s = gpu_s[:, None, None] * (1.0 / hosts.speed.T) + (hosts.late_us / US_PER_S)[:, None]
        served_s = np.maximum(left_s[:, None, None] - way_s[:, :, None] - self.held_s, 0.0)
        self.brings = gain[:, None, None] * served_s - (at_home * left_s)[:, None, None]
        self.brings[~np.array([hosts.other_than_home(offer) for offer in offers])] = -np.inf
        self.taken = np.zeros(len(rooms), dtype=np.int64)
        self.site = np.full(len(offers), -1)
        self.units = np.zeros(len(offers), dtype=np.int64)
        self.value = np.zeros(len(offers))
        self.best = np.empty((len(offers), len(rooms)))
        self.step = np.zeros((len(offers), len(rooms)), dtype=np.int64)

        for site in range(len(rooms)):
            self._look_at(site)

    def why_not(self) -> dict[Key, str]:
        """Returns for each offer why it could get nothing, before anything is lent."""
        worth = (self.brings - self.held_s * self.loss[:, 1:]).reshape(len(self._offers), -1)
        return {
            key_of(offer): self._refused(offer, int(row.argmax()), float(row.max()))
            for offer, row in zip(self._offers, worth, strict=True)
        }

    def _refused(self, offer: TrainingOffer, at: int, most: float) -> str:
        if most > 0.0:
            return "all spare capacity is worth more to others"
        if np.isneginf(most):
            return NO_ROOM
        site, units = divmod(at, self.loss.shape[1] - 1)
        room = self._hosts.rooms[site]
        best = loan_at(self._now_us, offer, room, units + 1, self._hosts.links, "")
        costs = loan_cost(best, [room])
        return f"{best.where} would cost {costs:.3g} for the {best.brings:.3g} that it brings"

    def loans(self) -> dict[Key, Loan]:
        """Takes steps as long as one is worth anything, and returns the loans by offer."""
        while True:
            offer, site = map(int, np.unravel_index(int(self.best.argmax()), self.best.shape))
            if self.best[offer, site] <= 0.0:
                break
            units = int(self.step[offer, site])
            self.value[offer] += self.best[offer, site] * (units - self.units[offer])
            self.taken[site] += units - self.units[offer]
            self.site[offer], self.units[offer] = site, units
            self.best[offer, :] = -np.inf
            self._look_at(site)
        reason = "its share there is worth most, compared with all other uses"
        return {
            key_of(self._offers[row]): loan_at(
                self._now_us,
                self._offers[row],
                self._hosts.rooms[self.site[row]],
                int(self.units[row]),
                self._hosts.links,
                reason,
            )
            for row in map(int, np.flatnonzero(self.units))
        }

    def _look_at(self, site: int) -> None:
        """Finds the best step of each offer at a server: a first share, or a larger one."""
        may = (self.site < 0) | (self.site == site)
        own = np.where(self.site == site, self.units, 0)
        others = self.taken[site] - own
        more = np.arange(1, self.loss.shape[1])[None, :]
        at = others[:, None] + more
        inside = at < self.loss.shape[1]
        lost = self.loss[site][np.where(inside, at, 0)] - self.loss[site][others][:, None]
        lost = np.where(inside, lost, np.inf)
        with np.errstate(invalid="ignore", divide="ignore"):
            worth = self.brings[:, site] - self.held_s[:, site] * lost
            rate = (worth - self.value[:, None]) / (more - own[:, None])
        good = may[:, None] & (more > own[:, None]) & np.isfinite(worth)
        rate = np.where(good, rate, -np.inf)
        chosen = rate.argmax(axis=1)
        self.step[:, site] = chosen + 1
        self.best[:, site] = rate[np.arange(len(rate)), chosen]
