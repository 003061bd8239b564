"""Moving average of a delay by server: of remote retrainings by host, or until weights serve by borrower."""

from collections.abc import Sequence

from ekya.fleet.policy.names import SiteName

_NEWEST = 0.5
"""Weight of the newest training in the moving average."""


class Lateness:
    """Learns by how much trainings of each server are later than planned, from trainings that are over."""

    def __init__(self) -> None:
        self._late_us: dict[SiteName, int] = {}

    def of(self, site: SiteName) -> int:
        """Returns the expected delay of a server's next training, in microseconds."""
        return self._late_us.get(site, 0)

    def arrived(self, sites: Sequence[SiteName], late_us: int) -> None:
        """Records a delay beyond the plan without any; it counts for all these servers."""
        late_us = max(0, late_us)
        for site in sites:
            before_us = self._late_us.get(site)
            self._late_us[site] = (
                late_us if before_us is None else round(before_us + _NEWEST * (late_us - before_us))
            )

    def missed(self, sites: Sequence[SiteName], late_us: int) -> None:
        """Records a lower bound of a delay, of a loan that was given up."""
        for site in sites:
            if late_us > self.of(site):
                self._late_us[site] = late_us
