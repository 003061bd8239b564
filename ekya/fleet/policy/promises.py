"""Learns how much of their promises loans keep: estimates are too high, and weights come late or never."""

from collections import deque
from dataclasses import replace
from math import fsum

from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName

LEAST, MOST = 0.1, 1.0
"""Bounds of the margin. With the least a server still borrows what costs next to nothing, and may recover.

Gains above the promise are no reason to lend more: at home the retraining would have brought more, too.
"""

_PRIOR = 2
"""Number of loans as which the prior counts: the fleet for one server, and kept promises for the fleet."""

_LAST = 100
"""Number of the fleet's loans that count, so that a server that borrows no more is tried again some time."""


_NEWEST = 0.5
"""Weight of the newest training in the moving average."""


class Lateness:
    """Learns by how much trainings of each server are later than planned: a moving average of those over."""

    def __init__(self) -> None:
        self._late_us: dict[SiteName, int] = {}

    def expected_delay_us(self, site: SiteName) -> int:
        """Returns the expected delay of a server's next training, in microseconds."""
        return self._late_us.get(site, 0)

    def record_delay(self, site: SiteName, late_us: int) -> None:
        """Records a delay beyond the plan without any."""
        late_us, before_us = max(0, late_us), self._late_us.get(site)
        self._late_us[site] = (
            late_us if before_us is None else round(before_us + _NEWEST * (late_us - before_us))
        )

    def record_least_delay(self, site: SiteName, late_us: int) -> None:
        """Records a lower bound of a delay, of a loan that was given up."""
        if late_us > self.expected_delay_us(site):
            self._late_us[site] = late_us


class Promises:
    """Learns from loans that are over.

    Attributes:
        late: delays of trainings, by host.
        serving: times from the arrival of weights until they serve, by borrower.
    """

    def __init__(self) -> None:
        self.late, self.serving = Lateness(), Lateness()
        self._over: deque[tuple[SiteName, float, float]] = deque(maxlen=_LAST)

    def record_gain(self, site: SiteName, promised: float, came: float, serves_after_us: int | None) -> None:
        """Records a borrower's estimate and the real gain of its stream, in accuracy times seconds."""
        self._over.append((site, promised, came))
        if serves_after_us is not None:
            self.serving.record_delay(site, serves_after_us)

    def with_expected_gain(self, offer: TrainingOffer) -> TrainingOffer:
        """Returns an offer with the gain that is expected to come."""
        margin, after_us = self.kept_part(offer.site), self.serving.expected_delay_us(offer.site)
        return replace(offer, gain=margin * offer.gain, margin=margin, serves_after_us=after_us)

    def kept_part(self, site: SiteName) -> float:
        """Returns the part of a server's promises that is expected to come, in [``LEAST``, ``MOST``].

        The order of the loans does not matter.
        """
        promised, came = self._totals({one[0] for one in self._over})
        if promised <= 0.0:
            return MOST
        prior = _PRIOR * promised / len(self._over)
        fleet = min((came + prior) / (promised + prior), MOST)
        promised, came = self._totals({site})
        return min(max((came + prior * fleet) / (promised + prior), LEAST), MOST)

    def _totals(self, sites: set[SiteName]) -> tuple[float, float]:
        own = [one for one in self._over if one[0] in sites]
        return fsum(promised for _, promised, _ in own), fsum(came for _, _, came in own)
