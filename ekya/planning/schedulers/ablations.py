"""Ekya with one of its two halves removed (paper Figure 8, factor analysis)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.shares import Job, Work
from ekya.core.view import WindowView
from ekya.planning.schedulers.allocation import choices_by_stream
from ekya.planning.schedulers.baselines import affordable_option, uniform_shares
from ekya.planning.schedulers.options import InferencePart, SchedulerOptions
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.thief import Thief


class FixedResOptions(SchedulerOptions):
    """Options of ``fixed-res``."""

    inference: InferencePart = 500


@dataclass(frozen=True, slots=True)
class FixedRes:
    """Ekya-FixedRes: the uniform baseline's shares, with γ and λ picked from profiles.

    Attributes:
        inference_part_milli: as in ``Uniform``.
    """

    name: ClassVar[str] = "fixed-res"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, fixed_shares=True)
    inference_part_milli: int = 500

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; the share of a finished retraining stays idle until the window ends."""
        return one_phase_plan(view, choices_by_stream(view), uniform_shares(view, self.inference_part_milli))


@dataclass(frozen=True, slots=True)
class FixedConfig:
    """Ekya-FixedConfig: the thief's shares, with the γ that the uniform baseline fixes.

    Attributes:
        inference_part_milli, fixed_gamma: as in ``Uniform``. Where no γ is named, the part only determines
            which γ its share could finish.
    """

    name: ClassVar[str] = "fixed-config"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, fixed_gamma=True)
    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None

    def plan(self, view: WindowView) -> Plan:
        """Returns the thief's plan, with the fixed γ as the only one offered."""
        shares = uniform_shares(view, self.inference_part_milli)
        streams = []
        for stream in view.streams:
            share_milli = shares[Job(stream.stream, Work.RETRAINING)]
            option = affordable_option(view, stream.retrain_options, share_milli, self.fixed_gamma)
            streams.append(replace(stream, retrain_options=() if option is None else (option,)))
        return Thief().plan(replace(view, streams=tuple(streams)))
