"""Scheduler protocol, with the needs and the options of a scheduler."""

from dataclasses import dataclass
from typing import Protocol

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.view import WindowView
from ekya.planning.schedulers.network import CELLULAR, Network


@dataclass(frozen=True, slots=True)
class Needs:
    """Preparation that a scheduler pays for (paper Figure 5), and decisions that it fixes for good.

    Attributes:
        labels: golden labels on a sample of the last window.
        inference_profile: relative accuracy and needed share of each λ.
        micro_profile: expected accuracy and GPU-seconds of each γ.
        fixed_gamma: its γ are fixed: they are not picked again at the granted shares.
        fixed_shares: its shares are fixed: shares left over by rounding are not given out.
        true_profile: true results of γ and models replace every estimate, at no cost. Only the trace world
            has them.
        elsewhere: γ are trained off the local GPUs. A live run cannot do that.
        kept_models: for every earlier window a model that can serve again, trained off the local GPUs. A
            live run has none.
        early_parts: part of a retraining's gain that serves before its end, from checkpoints (paper §5). The
            paper's own planners do not receive it.
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
    """Options of a scheduler, as ``spec`` reads them.

    Attributes:
        inference_part_milli: ``uniform``, ``fixed-res`` and ``fixed-config``: thousandths of a stream's
            share that inference gets.
        fixed_gamma: ``uniform``, ``fixed-config`` and ``cloud``: the only γ used; each defines what None
            means.
        network: ``cloud``: the network to it.
    """

    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None
    network: Network = CELLULAR


class Scheduler(Protocol):
    """Decides from a snapshot alone: the same view gives the same plan."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def needs(self) -> Needs:
        """Preparation that the scheduler needs."""

    def plan(self, view: WindowView) -> Plan:
        """Returns what each stream gets from now on; shares are multiples of δ within the capacity."""
