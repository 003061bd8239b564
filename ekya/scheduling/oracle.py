"""Baseline that knows the true results of every γ (paper §6.4 asks what profiling errors cost)."""

from dataclasses import dataclass

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.scheduling.ekya import Ekya
from ekya.scheduling.protocol import Needs


@dataclass(frozen=True, slots=True)
class Oracle:
    """Plans as ``ekya`` does, with the truth in place of every estimate.

    The truth about γ, λ and models is what counts later: on all objects, of every γ and in every window.
    Measuring it costs nothing, but labels are charged, since retrainings use them. So the gap between
    ``ekya`` and this baseline is the price of estimation.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "oracle"

    @property
    def needs(self) -> Needs:
        """Full preparation, with true profiles."""
        return Needs(
            labels=True, inference_profile=True, micro_profile=True, true_profile=True, early_parts=True
        )

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan of ``ekya``."""
        return Ekya().plan(view)
