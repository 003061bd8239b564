"""How much later than foreseen trainings end at each server: starts and checkpoints take time too."""

from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.names import SiteName

_NEWEST = 0.5
"""Of the newest training, beside all before it."""


class Lateness:
    """Learnt from trainings that are over; nothing is late where everything takes as long as was foreseen."""

    def __init__(self) -> None:
        self._late_us: dict[SiteName, int] = {}

    def of(self, host: SiteName) -> int:
        """What to add to the next training there, in microseconds."""
        return self._late_us.get(host, 0)

    def arrived(self, loan: Loan, at_us: int) -> None:
        """Its weights are home; all its hosts had to do with when that is."""
        late_us = max(0, loan.late_us + at_us - loan.arrives_us)
        for host in loan.hosts:
            before_us = self._late_us.get(host)
            self._late_us[host] = (
                late_us if before_us is None else round(before_us + _NEWEST * (late_us - before_us))
            )

    def missed(self, loan: Loan, at_us: int) -> None:
        """It was given up then: it takes longer than that, and nobody knows how much."""
        late_us = loan.late_us + at_us - loan.arrives_us
        for host in loan.hosts:
            if late_us > self.of(host):
                self._late_us[host] = late_us
