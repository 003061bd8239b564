"""Loans: agreed remote retrainings, with their shares, times and traffic (ours; no paper has this)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.fleet.policy.assignment import Mode
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room

Way = tuple[SiteName, SiteName]
"""Origin and target site of a transfer."""


@dataclass(frozen=True, slots=True)
class Links:
    """Rates of the links in megabytes a second: by pair of sites, and the default of all other pairs."""

    mb_s: Mapping[Way, float] = field(default_factory=dict)
    usual_mb_s: float = 12.5

    def takes_us(self, origin: SiteName, target: SiteName, size_mb: float) -> int:
        """Returns the time of a transfer in microseconds."""
        return round(size_mb * self.s_per_mb(origin, target) * US_PER_S)

    def s_per_mb(self, origin: SiteName, target: SiteName) -> float:
        """Returns the time of a megabyte in seconds."""
        return 1.0 / self.mb_s.get((origin, target), self.usual_mb_s)


@dataclass(frozen=True, slots=True)
class LoanPart:
    """One host's part of a retraining.

    Attributes:
        host: its site.
        share_milli: share that the retraining holds there.
        crops: part of the crops that it trains on.
    """

    host: SiteName
    share_milli: int
    crops: float = 1.0


@dataclass(frozen=True, slots=True)
class Loan:
    """A retraining on other servers.

    Attributes:
        offer: the retraining.
        parts: of the hosts; one, where the retraining is not split.
        parameter_server: site of the parameter server, which sends the snapshots home.
        begins_us: when crops and model have arrived at the hosts.
        ends_us: planned end of the training.
        arrives_us: planned arrival of its weights at home.
        sent_mb: sent before it begins, by way: labelled crops and the model, where a host lacks them.
        reason: one sentence for the operator.
        epoch_mb: exchanged by workers and the parameter server in each epoch, by way.
        late_us: allowance until ``ends_us`` for the delay of former trainings at the hosts.
        mode: whether workers of a split retraining wait for each other.
        number: unique in the fleet; -1 before the loan is made.
    """

    offer: TrainingOffer
    parts: tuple[LoanPart, ...]
    parameter_server: SiteName
    begins_us: int
    ends_us: int
    arrives_us: int
    sent_mb: Mapping[Way, float]
    reason: str
    epoch_mb: Mapping[Way, float] = field(default_factory=dict)
    late_us: int = 0
    mode: Mode = "synchronous"
    number: int = -1

    @property
    def hosts(self) -> tuple[SiteName, ...]:
        """Sites of the hosts."""
        return tuple(part.host for part in self.parts)

    @property
    def where(self) -> str:
        """Hosts and shares in words."""
        shares = (f"{part.share_milli / FULL_GPU_MILLI:.0%} of a GPU of {part.host}" for part in self.parts)
        return " and ".join(shares)

    @property
    def brings(self) -> float:
        """Gain of the borrower, in accuracy times seconds."""
        return self.offer.gain_if_arrives(self.arrives_us)

    def late_by(self, at_us: int) -> int:
        """Returns the delay of weights that arrive at this time, beyond the plan without any."""
        return self.late_us + at_us - self.arrives_us

    @property
    def promises(self) -> float:
        """Gain of its stream by the borrower's own estimate, in accuracy times seconds."""
        return self.offer.promised_if_arrives(self.arrives_us)

    def came_home(self, at_us: int) -> tuple[int, int]:
        """Returns the epochs whose snapshots are home at a time, and the number of snapshots sent for them.

        A snapshot is sent when an epoch ends and the transfer of the previous snapshot is done.
        """
        epochs, between = self.offer.epochs, self._epochs_between
        if at_us >= self.arrives_us:
            return epochs, ceil(epochs / between)
        sent_us = max(at_us - self._back_us - self.begins_us, 0)
        snapshots = min(sent_us // (between * self._epoch_us), (epochs - 1) // between)
        return snapshots * between, snapshots

    def next_home(self, epochs_home: int) -> tuple[int, int]:
        """Returns the arrival time of the next snapshot, and the number of epochs that are home then."""
        between = self._epochs_between
        epochs = (epochs_home // between + 1) * between
        if epochs >= self.offer.epochs:
            return self.arrives_us, self.offer.epochs
        return self.begins_us + epochs * self._epoch_us + self._back_us, epochs

    def offer_of_rest(self, now_us: int) -> TrainingOffer:
        """Returns an offer for what is not home yet, by the plan; hosts keep crops that they have."""
        there_mb = self.offer.crops_there_mb
        if now_us >= self.begins_us:
            there_mb = {part.host: part.crops * self.offer.crops_mb for part in self.parts}
        return self.offer.for_last_epochs(
            max(1, self.offer.epochs - self.came_home(now_us)[0]), now_us, there_mb
        )

    def going_on(self, now_us: int) -> "Loan":
        """Returns the rest of the loan, where it stays."""
        begins_us = min(max(now_us, self.begins_us), self.ends_us)
        return replace(self, offer=self.offer_of_rest(now_us), begins_us=begins_us)

    @property
    def _epoch_us(self) -> int:
        return max((self.ends_us - self.begins_us) // self.offer.epochs, 1)

    @property
    def _back_us(self) -> int:
        return self.arrives_us - self.ends_us

    @property
    def _epochs_between(self) -> int:
        """Epochs between two snapshots that are sent."""
        return max(1, ceil(self._back_us / self._epoch_us))

    def moved_mb(self, at_us: int) -> Mapping[Way, float]:
        """Returns the megabytes that have crossed each link at a time."""
        moved = dict(self.sent_mb)
        part = (at_us - self.begins_us) / max(self.ends_us - self.begins_us, 1)
        epochs = min(max(part, 0.0), 1.0) * self.offer.epochs
        for way, size_mb in self.epoch_mb.items():
            moved[way] = moved.get(way, 0.0) + epochs * size_mb
        home = (self.parameter_server, self.offer.site)
        moved[home] = moved.get(home, 0.0) + self.offer.back_mb * self.came_home(at_us)[1]
        return moved


def alone(now_us: int, offer: TrainingOffer, host: Room, units: int, links: Links, reason: str) -> Loan:
    """Returns the loan in which one server does the whole retraining."""
    sent_mb = offer.sent_mb(host.site)
    begins_us = now_us + links.takes_us(offer.site, host.site, sent_mb)
    takes_s = host.takes_s(offer.gpu_s, units * host.step_milli)
    ends_us = begins_us + host.late_us + round(takes_s * US_PER_S)
    return Loan(
        offer=offer,
        parts=(LoanPart(host.site, units * host.step_milli),),
        parameter_server=host.site,
        begins_us=begins_us,
        ends_us=ends_us,
        arrives_us=ends_us + links.takes_us(host.site, offer.site, offer.back_mb),
        sent_mb={(offer.site, host.site): sent_mb},
        reason=reason,
        late_us=host.late_us,
    )


def left_behind(loan: Loan, gone: SiteName) -> Mapping[SiteName, float]:
    """Returns the megabytes of crops that the hosts of a loan keep when one of them is gone."""
    return {part.host: part.crops * loan.offer.crops_mb for part in loan.parts if part.host != gone}


def loan_cost(loan: Loan, rooms: Iterable[Room]) -> float:
    """Returns the loss of the hosts' own streams, in accuracy times seconds."""
    held_s = us_to_seconds(loan.ends_us - loan.begins_us)
    known = {room.site: room for room in rooms}
    there = ((known[part.host], part.share_milli) for part in loan.parts if part.host in known)
    return held_s * sum(room.loss_of_share(share_milli) for room, share_milli in there)


def beside(loan: Loan, rooms: Iterable[Room]) -> tuple[Room, ...]:
    """Returns the spare capacity that is left beside a loan; servers without any are dropped."""
    shares = {part.host: part.share_milli for part in loan.parts}
    left = (room.beside_share(shares[room.site]) if room.site in shares else room for room in rooms)
    return tuple(room for room in left if room.loss)
