"""Loans: agreed remote retrainings, with their shares, times and traffic (ours; no paper has this)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
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
class Loan:
    """A retraining on another server.

    Attributes:
        offer: the retraining.
        host: the server.
        share_milli: share that the retraining holds there.
        begins_us: when crops and model have arrived at the host.
        ends_us: planned end of the training.
        arrives_us: planned arrival of its weights at home.
        reason: one sentence for the operator.
        late_us: allowance until ``ends_us`` for the delay of former trainings at the host.
        number: unique in the fleet; -1 before the loan is made.
    """

    offer: TrainingOffer
    host: SiteName
    share_milli: int
    begins_us: int
    ends_us: int
    arrives_us: int
    reason: str
    late_us: int = 0
    number: int = -1

    @property
    def where(self) -> str:
        """Host and share in words."""
        return f"{self.share_milli / FULL_GPU_MILLI:.0%} of a GPU of {self.host}"

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
        """Returns an offer for what is not home yet, by the plan; the host keeps crops and model."""
        held_by = self.host if now_us >= self.begins_us else self.offer.held_by
        left = max(1, self.offer.epochs - self.came_home(now_us)[0])
        return self.offer.for_last_epochs(left, now_us, held_by)

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
        came_mb = self.offer.back_mb * self.came_home(at_us)[1]
        return {
            (self.offer.site, self.host): self.offer.sent_mb(self.host),
            (self.host, self.offer.site): came_mb,
        }


def loan_at(now_us: int, offer: TrainingOffer, host: Room, units: int, links: Links, reason: str) -> Loan:
    """Returns the loan of units of a server's share."""
    sent_mb = offer.sent_mb(host.site)
    begins_us = now_us + links.takes_us(offer.site, host.site, sent_mb)
    takes_s = host.takes_s(offer.gpu_s, units * host.step_milli)
    ends_us = begins_us + host.late_us + round(takes_s * US_PER_S)
    return Loan(
        offer=offer,
        host=host.site,
        share_milli=units * host.step_milli,
        begins_us=begins_us,
        ends_us=ends_us,
        arrives_us=ends_us + links.takes_us(host.site, offer.site, offer.back_mb),
        reason=reason,
        late_us=host.late_us,
    )


def loan_cost(loan: Loan, rooms: Iterable[Room]) -> float:
    """Returns the loss of the host's own streams, in accuracy times seconds."""
    held_s = us_to_seconds(loan.ends_us - loan.begins_us)
    there = (room for room in rooms if room.site == loan.host)
    return held_s * sum(room.loss_of_share(loan.share_milli) for room in there)


def beside(loan: Loan, rooms: Iterable[Room]) -> tuple[Room, ...]:
    """Returns the spare capacity that is left beside a loan; servers without any are dropped."""
    left = (room.beside_share(loan.share_milli) if room.site == loan.host else room for room in rooms)
    return tuple(room for room in left if room.loss)
