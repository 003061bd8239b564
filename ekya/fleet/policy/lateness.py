"""Moving average of the delay of remote retrainings by host; starts and checkpoints take time too."""

from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.names import SiteName

_NEWEST = 0.5
"""Weight of the newest training in the moving average."""


class Lateness:
    """Learns by how much trainings at each server end later than planned, from trainings that are over."""

    def __init__(self) -> None:
        self._late_us: dict[SiteName, int] = {}

    def of(self, host: SiteName) -> int:
        """Returns the expected delay of a host's next training, in microseconds."""
        return self._late_us.get(host, 0)

    def arrived(self, loan: Loan, at_us: int) -> None:
        """Records that a loan's weights came home; the delay counts for all its hosts."""
        late_us = max(0, loan.late_us + at_us - loan.arrives_us)
        for host in loan.hosts:
            before_us = self._late_us.get(host)
            self._late_us[host] = (
                late_us if before_us is None else round(before_us + _NEWEST * (late_us - before_us))
            )

    def missed(self, loan: Loan, at_us: int) -> None:
        """Records that a loan was given up at this time, which is a lower bound of its delay."""
        late_us = loan.late_us + at_us - loan.arrives_us
        for host in loan.hosts:
            if late_us > self.of(host):
                self._late_us[host] = late_us
