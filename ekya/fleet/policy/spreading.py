"""A retraining over several servers with a parameter server at one of them: how long, and what crosses links.

Each host goes through its part of an epoch's crops in steps of γ's batch size, pushes what a step learnt
and pulls what has come of all (Deep-Edge §II). How long a crop takes is known from the offer. An exchange
takes as long as the link there and back, behind the others whom the parameter server is busy with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import SERVER_PART
from ekya.fleet.policy.deep_edge.estimates import Training
from ekya.fleet.policy.loans import Links, Loan, LoanPart, Way
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import NodeState
from ekya.fleet.policy.rooms import Room

_ROUNDS = 30
"""Of the mean value analysis, after which nothing moves any more."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Hosts, shares and a parameter server. It is Deep-Edge's ``EdgeEstimates`` of them.

    Attributes:
        offer: what is trained.
        links: between servers.
        rooms: of servers that could be hosts.
        units: that each of these would lend.
        server: one of them, where the parameter server is.
    """

    offer: Offer
    links: Links
    rooms: Mapping[SiteName, Room]
    units: Mapping[SiteName, int]
    server: SiteName

    def crop_s(self, host: SiteName, units: int) -> float:
        """Of a crop in one epoch, at so many units."""
        room, offer = self.rooms[host], self.offer
        share_milli = units * room.step_milli
        if host == self.server:
            share_milli = round((1.0 - SERVER_PART) * share_milli)
        return offer.gpu_s / (offer.epochs * offer.crops) / room.speed.speed(share_milli)

    def exchange_s(self, host: SiteName) -> float:
        """Of one step's weights, to the parameter server and back."""
        if host == self.server:
            return 0.0
        there_us = self.links.takes_us(host, self.server, self.offer.trained_mb)
        return (there_us + self.links.takes_us(self.server, host, self.offer.trained_mb)) / US_PER_S

    def compute_s(self, worker: Training) -> float:
        """EstComputeTime."""
        host = SiteName(worker.kind)
        return self.crop_s(host, self.units[host])

    def update_s(self, workers: Sequence[Training], server: NodeState) -> list[float]:
        """EstUpdateTime: the exchange, and waiting for those of the others.

        Workers who compute, then wait for one server, are a closed queueing network; this is Schweitzer's
        mean value analysis of it.
        """
        away_s = [worker.batch * self.compute_s(worker) for worker in workers]
        own_s = [self.exchange_s(SiteName(worker.kind)) for worker in workers]
        there_s = list(own_s)
        for _ in range(_ROUNDS):
            busy_s = [
                own * there / (away + there) for own, there, away in zip(own_s, there_s, away_s, strict=True)
            ]
            there_s = [
                own + (sum(busy_s) - busy if own else 0.0) for own, busy in zip(own_s, busy_s, strict=True)
            ]
        return there_s

    def state_after(self, worker: Training) -> NodeState:
        """EstState: as before; a room's share is free, and its memory has been looked after by its server."""
        return worker.state

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """EstExecTime: what hosts' streams lose is a price here, not a deadline."""
        return 0.0

    def loan(self, now_us: int, crops: Mapping[SiteName, int], reason: str) -> Loan:
        """The loan where each host goes through so many crops an epoch.

        Args:
            now_us: when it is agreed.
            crops: at least one each, and all of them together.
            reason: of it.
        """
        offer, hosts = self.offer, sorted(crops)
        parts = {host: crops[host] / offer.crops for host in hosts}
        sent_mb = {
            (offer.site, host): offer.sent_mb(host, parts[host], validates=host == self.server)
            for host in hosts
        }
        begins_us = now_us + max(self.links.takes_us(*way, size_mb) for way, size_mb in sent_mb.items())
        late_us = max(self.rooms[host].late_us for host in hosts)
        ends_us = begins_us + late_us + round(offer.epochs * self._epoch_s(crops) * US_PER_S)
        return Loan(
            offer=offer,
            parts=tuple(
                LoanPart(host, self.units[host] * self.rooms[host].step_milli, parts[host]) for host in hosts
            ),
            server=self.server,
            begins_us=begins_us,
            ends_us=ends_us,
            arrives_us=ends_us + self.links.takes_us(self.server, offer.site, offer.back_mb),
            sent_mb=sent_mb,
            epoch_mb=self._epoch_mb(crops),
            reason=reason,
            late_us=late_us,
        )

    def _epoch_s(self, crops: Mapping[SiteName, int]) -> float:
        batch = self.offer.config.batch_size
        workers = [Training(str(host), NodeState(), batch) for host in sorted(crops)]
        updates_s = dict(zip(sorted(crops), self.update_s(workers, NodeState()), strict=True))
        return max(
            count * self.crop_s(host, self.units[host]) + ceil(count / batch) * updates_s[host]
            for host, count in crops.items()
        )

    def _epoch_mb(self, crops: Mapping[SiteName, int]) -> dict[Way, float]:
        moved: dict[Way, float] = {}
        for host, count in crops.items():
            if host != self.server:
                steps = ceil(count / self.offer.config.batch_size)
                moved[host, self.server] = moved[self.server, host] = steps * self.offer.trained_mb
        return moved
