"""What servers agree on: a retraining of one that runs on others (ours; no paper has this)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room

Way = tuple[SiteName, SiteName]
"""From one site to another."""


@dataclass(frozen=True, slots=True)
class Links:
    """Megabytes a second between two sites, and of all pairs that nobody names."""

    mb_s: Mapping[Way, float] = field(default_factory=dict)
    usual_mb_s: float = 12.5

    def takes_us(self, origin: SiteName, target: SiteName, size_mb: float) -> int:
        """How long so much is on its way."""
        return round(size_mb / self.mb_s.get((origin, target), self.usual_mb_s) * US_PER_S)


@dataclass(frozen=True, slots=True)
class LoanPart:
    """What one host does of a retraining.

    Attributes:
        host: which.
        share_milli: that is held there.
        crops: how much of the crops it goes through, against the other parts.
    """

    host: SiteName
    share_milli: int
    crops: float = 1.0


@dataclass(frozen=True, slots=True)
class Loan:
    """A retraining on other servers.

    Attributes:
        offer: what it is.
        parts: who trains; one, where it is not split.
        server: where the parameter server is, from which snapshots go home.
        begins_us: when what it needs is there.
        ends_us: when it is trained, if nothing happens.
        arrives_us: when its weights are back.
        sent_mb: by way, before it begins: labelled crops and the model, where they do not lie there already.
        reason: one sentence that an operator can read.
        epoch_mb: by way, in each epoch: what workers and the parameter server exchange.
        late_us: how much of the time until it is trained is what others took beyond what was foreseen.
    """

    offer: Offer
    parts: tuple[LoanPart, ...]
    server: SiteName
    begins_us: int
    ends_us: int
    arrives_us: int
    sent_mb: Mapping[Way, float]
    reason: str
    epoch_mb: Mapping[Way, float] = field(default_factory=dict)
    late_us: int = 0

    @property
    def hosts(self) -> tuple[SiteName, ...]:
        """All of them."""
        return tuple(part.host for part in self.parts)

    @property
    def where(self) -> str:
        """For people."""
        shares = (f"{part.share_milli / FULL_GPU_MILLI:.0%} of a GPU of {part.host}" for part in self.parts)
        return " and ".join(shares)

    @property
    def brings(self) -> float:
        """Accuracy times seconds that who borrows has more of."""
        return self.offer.brings(self.arrives_us)

    def came_home(self, at_us: int) -> tuple[int, int]:
        """Epochs that are safe at home by then, and the snapshots sent for them.

        A snapshot is sent when an epoch is over and the link has taken the one before.
        """
        epochs, between = self.offer.epochs, self._epochs_between
        if at_us >= self.arrives_us:
            return epochs, ceil(epochs / between)
        sent_us = max(at_us - self._back_us - self.begins_us, 0)
        snapshots = min(sent_us // (between * self._epoch_us), (epochs - 1) // between)
        return snapshots * between, snapshots

    def next_home(self, epochs_home: int) -> tuple[int, int]:
        """When more epochs than these are safe at home, and how many then."""
        between = self._epochs_between
        epochs = (epochs_home // between + 1) * between
        if epochs >= self.offer.epochs:
            return self.arrives_us, self.offer.epochs
        return self.begins_us + epochs * self._epoch_us + self._back_us, epochs

    @property
    def _epoch_us(self) -> int:
        return max((self.ends_us - self.begins_us) // self.offer.epochs, 1)

    @property
    def _back_us(self) -> int:
        return self.arrives_us - self.ends_us

    @property
    def _epochs_between(self) -> int:
        """Epochs from one snapshot that is sent to the next."""
        return max(1, ceil(self._back_us / self._epoch_us))

    def moved_mb(self, at_us: int) -> Mapping[Way, float]:
        """What has crossed each link by then."""
        moved = dict(self.sent_mb)
        part = (at_us - self.begins_us) / max(self.ends_us - self.begins_us, 1)
        epochs = min(max(part, 0.0), 1.0) * self.offer.epochs
        for way, size_mb in self.epoch_mb.items():
            moved[way] = moved.get(way, 0.0) + epochs * size_mb
        home = (self.server, self.offer.site)
        moved[home] = moved.get(home, 0.0) + self.offer.back_mb * self.came_home(at_us)[1]
        return moved


def loan_cost(loan: Loan, rooms: Iterable[Room]) -> float:
    """Accuracy times seconds that the hosts' own streams lose."""
    held_s = us_to_seconds(loan.ends_us - loan.begins_us)
    known = {room.site: room for room in rooms}
    return held_s * sum(known[part.host].lost(part.share_milli) for part in loan.parts)


def beside(loan: Loan, rooms: Iterable[Room]) -> tuple[Room, ...]:
    """What servers have room for beside a loan."""
    shares = {part.host: part.share_milli for part in loan.parts}
    left = (room.beside(shares.get(room.site, 0)) for room in rooms)
    return tuple(room for room in left if room.loss)
