"""Time and traffic of a retraining over several servers with a parameter server at one of them.

Each host trains on its part of an epoch's crops in steps of γ's batch size, pushes the gradient of a step
and pulls the weights (Deep-Edge §II). The time of a crop follows from the offer. An exchange takes the
transfer there and back, and queues behind other workers at the parameter server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import SERVER_PART
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.loans import Links, Loan, LoanPart, Way
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import NodeState, SiteName
from ekya.fleet.policy.rooms import Room

_ROUNDS = 30
"""Iterations of the mean value analysis, enough to converge."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Hosts, shares and a parameter server; implements Deep-Edge's ``EdgeEstimates``.

    Attributes:
        offer: the retraining.
        links: between servers.
        rooms: of the possible hosts.
        units: of share that each host would lend.
        parameter_server: host of the parameter server.
    """

    offer: TrainingOffer
    links: Links
    rooms: Mapping[SiteName, Room]
    units: Mapping[SiteName, int]
    parameter_server: SiteName
    _known: dict[tuple[str, int], tuple[float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def crop_s(self, host: SiteName, units: int) -> float:
        """Returns the seconds per crop of an epoch at a number of units."""
        room, offer = self.rooms[host], self.offer
        share_milli = units * room.step_milli
        if host == self.parameter_server:
            share_milli = round((1.0 - SERVER_PART) * share_milli)
        return room.takes_s(offer.gpu_s / (offer.epochs * offer.crops), share_milli)

    def exchange_s(self, host: SiteName) -> float:
        """Returns the seconds of one step's transfer to the parameter server and back."""
        if host == self.parameter_server:
            return 0.0
        there_us = self.links.takes_us(host, self.parameter_server, self.offer.trained_mb)
        return (there_us + self.links.takes_us(self.parameter_server, host, self.offer.trained_mb)) / US_PER_S

    def compute_s(self, worker: EdgeTraining) -> float:
        host = SiteName(worker.kind)
        return self.crop_s(host, self.units[host])

    def update_s(self, workers: Sequence[EdgeTraining], parameter_server: NodeState) -> list[float]:
        """Returns EstUpdateTime: the exchange, and waiting for the exchanges of other workers."""
        return self.updates_s([workers], parameter_server)[0]

    def updates_s(
        self, sets: Sequence[Sequence[EdgeTraining]], parameter_server: NodeState
    ) -> list[list[float]]:
        """Returns EstUpdateTime of several sets of workers, equally many in each.

        Workers that compute, then queue for one parameter server, are a closed queueing network; this is
        Schweitzer's mean value analysis of it.
        """
        times_s = [[self._times_s(worker) for worker in workers] for workers in sets]
        away_s, own_s = np.array(times_s).reshape(len(sets), -1, 2).transpose(2, 0, 1)
        there_s = own_s
        for _ in range(_ROUNDS):
            busy_s = own_s * there_s / (away_s + there_s)
            # The last of the cumulative sums, and no sum: its rounding depends on the number of sets.
            others_s = busy_s.cumsum(axis=1)[:, -1:] - busy_s
            there_s = own_s + np.where(own_s > 0.0, others_s, 0.0)
        found: list[list[float]] = there_s.tolist()
        return found

    def _times_s(self, worker: EdgeTraining) -> tuple[float, float]:
        """Returns the seconds of a step and of its exchange; solvers ask for them again and again."""
        key = worker.kind, worker.batch
        if key not in self._known:
            exchange_s = self.exchange_s(SiteName(worker.kind))
            self._known[key] = worker.batch * self.compute_s(worker), exchange_s
        return self._known[key]

    def state_after(self, worker: EdgeTraining) -> NodeState:
        """Returns EstState: the lent share is in use too. The host checks its memory itself."""
        room = self.rooms[SiteName(worker.kind)]
        lent = self.units[room.site] * room.step_milli / room.capacity_milli
        return replace(worker.state, gpu=worker.state.gpu + lent)

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """Returns EstExecTime: age of a stream's results where its host is utilised so."""
        room = self.rooms[SiteName(kind)]
        stream = next(one for one in room.inference if one.stream == app)
        return stream.age_s * _stretched(room, state.gpu - inferring(room).gpu)

    def loan(self, now_us: int, crops: Mapping[SiteName, int], reason: str) -> Loan:
        """Returns the loan with a given number of crops per host.

        Args:
            now_us: time of the agreement.
            crops: of each host, at least one; they sum to the offer's crops.
            reason: of the loan.
        """
        offer, hosts = self.offer, sorted(crops)
        parts = {host: crops[host] / offer.crops for host in hosts}
        sent_mb = {
            (offer.site, host): offer.sent_mb(host, parts[host], validates=host == self.parameter_server)
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
            parameter_server=self.parameter_server,
            begins_us=begins_us,
            ends_us=ends_us,
            arrives_us=ends_us + self.links.takes_us(self.parameter_server, offer.site, offer.back_mb),
            sent_mb=sent_mb,
            epoch_mb=self._epoch_mb(crops),
            reason=reason,
            late_us=late_us,
            mode="asynchronous",
        )

    def _epoch_s(self, crops: Mapping[SiteName, int]) -> float:
        batch = self.offer.config.batch_size
        workers = [EdgeTraining(str(host), NodeState(), batch) for host in sorted(crops)]
        updates_s = dict(zip(sorted(crops), self.update_s(workers, NodeState()), strict=True))
        return max(
            count * self.crop_s(host, self.units[host]) + ceil(count / batch) * updates_s[host]
            for host, count in crops.items()
        )

    def _epoch_mb(self, crops: Mapping[SiteName, int]) -> dict[Way, float]:
        moved: dict[Way, float] = {}
        for host, count in crops.items():
            if host != (hub := self.parameter_server):
                steps = ceil(count / self.offer.config.batch_size)
                moved[host, hub] = moved[hub, host] = steps * self.offer.trained_mb
        return moved


def inferring(room: Room) -> NodeState:
    """Returns X of a server without guests: its streams' inference keeps up, and nothing else runs."""
    return NodeState(gpu=sum(stream.need_milli for stream in room.inference) / room.capacity_milli)


def late_streams(room: Room, lent_milli: int) -> list[str]:
    """Returns the server's own streams whose results would be too old beside a lent share."""
    stretched = _stretched(room, lent_milli / room.capacity_milli)
    return [one.stream for one in room.inference if one.age_s * stretched > one.limit_s]


def _stretched(room: Room, lent: float) -> float:
    """Returns by how much inference takes longer where this part of the server is lent.

    Its streams share the rest in proportion to their needs.
    """
    if lent >= 1.0:
        return inf
    return max(1.0, inferring(room).gpu / (1.0 - lent))
