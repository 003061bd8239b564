"""The baseline that knows what every γ gives (paper §6.4 asks what profiling errors cost)."""

from dataclasses import dataclass

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.scheduling.ekya import Ekya
from ekya.scheduling.protocol import Needs


@dataclass(frozen=True, slots=True)
class Oracle:
    """Plans as ``ekya`` does, with the truth in place of every estimate.

    What it is told of γ, λ and models is what counts later, on all objects, of every γ and in every window,
    and measuring it costs nothing. Labels are charged, since retrainings are made of them. So what ``ekya``
    falls short of it is the price of having to find out.
    """

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "oracle"

    @property
    def needs(self) -> Needs:
        """All there is to know."""
        return Needs(
            labels=True, inference_profile=True, micro_profile=True, true_profile=True, early_parts=True
        )

    def plan(self, view: WindowView) -> Plan:
        """As ``ekya``."""
        return Ekya().plan(view)
