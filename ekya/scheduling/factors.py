"""Ekya with one of its two halves taken out (paper Figure 8, factor analysis)."""

from dataclasses import dataclass, replace

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.scheduling.allocation import Job, JobKind, choices_by_stream
from ekya.scheduling.protocol import Needs
from ekya.scheduling.reasons import one_phase_plan
from ekya.scheduling.thief import Thief
from ekya.scheduling.uniform import affordable_option, check_part, uniform_shares


@dataclass(frozen=True, slots=True)
class FixedRes:
    """Ekya-FixedRes: the uniform baseline's shares, and γ and λ picked from profiles at these.

    Attributes:
        inference_part_milli: as ``Uniform`` has it.

    Raises:
        UserError: the part is out of range.
    """

    inference_part_milli: int = 500

    def __post_init__(self) -> None:
        check_part(self.inference_part_milli)

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "fixed-res"

    @property
    def needs(self) -> Needs:
        """The preparation it wants."""
        return Needs(labels=True, inference_profile=True, micro_profile=True, fixed_shares=True)

    def plan(self, view: WindowView) -> Plan:
        """One phase; what a finished retraining leaves stays idle until the window ends."""
        choices = choices_by_stream(view)
        return one_phase_plan(view, choices, uniform_shares(view, choices, self.inference_part_milli))


@dataclass(frozen=True, slots=True)
class FixedConfig:
    """Ekya-FixedConfig: the thief's shares, and the γ that the uniform baseline fixes.

    Attributes:
        inference_part_milli, fixed_gamma: as ``Uniform`` has them. The part says only which γ its share
            could finish, where none is named.

    Raises:
        UserError: the part is out of range.
    """

    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None

    def __post_init__(self) -> None:
        check_part(self.inference_part_milli)

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "fixed-config"

    @property
    def needs(self) -> Needs:
        """The preparation it wants; profiles tell the thief what the γ is worth to whom."""
        return Needs(labels=True, inference_profile=True, micro_profile=True, fixed_gamma=True)

    def plan(self, view: WindowView) -> Plan:
        """The thief's plan where no stream is offered another γ."""
        choices = choices_by_stream(view)
        shares = uniform_shares(view, choices, self.inference_part_milli)
        streams = tuple(
            replace(
                stream,
                retrain_options=self._offered(view, stream, shares[Job(stream.stream, JobKind.RETRAINING)]),
            )
            for stream in view.streams
        )
        return Thief().plan(replace(view, streams=streams))

    def _offered(self, view: WindowView, stream: StreamView, share_milli: int) -> tuple[RetrainOption, ...]:
        option = affordable_option(view, stream.retrain_options, share_milli, self.fixed_gamma)
        return () if option is None else (option,)
