"""What a scheduler is."""

from dataclasses import dataclass
from typing import Protocol

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.scheduling.network import CELLULAR, Network


@dataclass(frozen=True, slots=True)
class Needs:
    """What a scheduler wants to have paid for (paper Figure 5), and what it has fixed for good.

    Attributes:
        labels: golden labels on a sample of the last window.
        inference_profile: relative accuracy and needed share of each λ.
        micro_profile: expected accuracy and GPU-seconds of each γ.
        fixed_gamma: its γ are fixed, so nobody else picks them again at the shares that were granted.
        fixed_shares: its shares are fixed, so nobody else gives out what rounding left over.
        true_profile: what γ really give, and how models really do, in place of every estimate and at no
            cost. Only the trace world knows.
        elsewhere: γ are trained off the GPUs here. A live run cannot do that.
        kept_models: of every earlier window a model that can serve again, trained off the GPUs here. A live
            run has none.
        early_parts: what of a retraining serves before its end, thanks to its checkpoints (paper §5). The
            paper's own planners are not told.
    """

    labels: bool
    inference_profile: bool
    micro_profile: bool
    fixed_gamma: bool = False
    fixed_shares: bool = False
    true_profile: bool = False
    elsewhere: bool = False
    kept_models: bool = False
    early_parts: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What can be told to a scheduler; ``spec`` reads it.

    Attributes:
        inference_part_milli: ``uniform``, ``fixed-res`` and ``fixed-config``: thousandths of a stream's share
            that inference gets.
        fixed_gamma: ``uniform``, ``fixed-config`` and ``cloud``: the only γ; each says what None is.
        network: ``cloud``: the way there.
    """

    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None
    network: Network = CELLULAR


class Scheduler(Protocol):
    """Decides from a snapshot alone: the same view gives the same plan."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    @property
    def needs(self) -> Needs:
        """The preparation it wants."""

    def plan(self, view: WindowView) -> Plan:
        """What each stream does from now on; shares are multiples of δ within the capacity."""
