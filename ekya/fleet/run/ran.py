"""What a run of several servers leaves behind, in any world."""

from dataclasses import dataclass, field
from typing import Any

from ekya.fleet.policy.names import SiteName


@dataclass(slots=True, eq=False)
class RanServers:
    """For their summary.

    Attributes:
        summaries: of the servers whose runs could be measured, by site.
        died_s: when those died that did.
    """

    summaries: dict[SiteName, dict[str, Any]] = field(default_factory=dict)
    died_s: dict[SiteName, float] = field(default_factory=dict)
