"""The baseline that never retrains."""

from dataclasses import dataclass

from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.scheduling.allocation import choices_by_stream, even_inference
from ekya.scheduling.protocol import Needs
from ekya.scheduling.reasons import one_phase_plan


@dataclass(frozen=True, slots=True)
class NoRetrain:
    """Gives equal shares to inference and none to retraining; a retraining that runs already is paused."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "no-retrain"

    @property
    def needs(self) -> Needs:
        """Preparation that the scheduler needs."""
        return Needs(
            labels=False, inference_profile=False, micro_profile=False, fixed_gamma=True, fixed_shares=True
        )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        choices = choices_by_stream(view)
        return one_phase_plan(
            view, choices, even_inference(view, choices), why_not="this scheduler never does"
        )
