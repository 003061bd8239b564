"""Baselines: no retraining, uniform (paper §3.2, §6.1), true results (paper §6.4), one half of Ekya removed.

The last are the factor analysis of the paper's Figure 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment, Plan
from ekya.core.shares import Job, Work
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.core.view import RetrainOption, WindowView
from ekya.planning.schedulers.allocation import choices_by_stream, fair_shares_milli, largest_share_milli
from ekya.planning.schedulers.ekya import Ekya
from ekya.planning.schedulers.pick import StreamChoices, fixed_retraining
from ekya.planning.schedulers.reasons import build_assignment, inference_plan, one_phase_plan, plan_of
from ekya.planning.schedulers.scheduler import Gamma, InferencePart, Needs, SchedulerOptions
from ekya.planning.schedulers.thief import Thief


@dataclass(frozen=True, slots=True)
class NoRetrain:
    """Gives equal shares to inference and none to retraining; a retraining that runs already is paused."""

    name: ClassVar[str] = "no-retrain"
    needs: ClassVar[Needs] = Needs(
        labels=False, inference_profile=True, micro_profile=False, fixed_gamma=True, fixed_shares=True
    )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        return inference_plan(
            view,
            lambda stream: (stream.running.option if stream.running else None, None),
            why_not="this scheduler never does",
        )


class UniformOptions(SchedulerOptions):
    """Options of ``uniform`` and ``fixed-config``."""

    inference: InferencePart = 500
    gamma: Gamma = None


@dataclass(frozen=True, slots=True)
class Uniform:
    """Splits the GPUs evenly over streams, and each part between retraining and inference.

    The allocation is static: the share of a finished retraining stays idle until the window ends.

    Attributes:
        inference_part_milli: thousandths of a stream's share for inference, 0 to 1000.
        fixed_gamma: the γ it always uses. None takes the most expensive one that its share can finish in
            what is left of the window: the strongest choice that can be fixed without today's profiles. One
            that never finishes would be no baseline.
    """

    name: ClassVar[str] = "uniform"
    needs: ClassVar[Needs] = Needs(
        labels=True, inference_profile=True, micro_profile=False, fixed_gamma=True, fixed_shares=True
    )
    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        shares = uniform_shares(view, self.inference_part_milli)
        return plan_of(
            view, [self._assignment(stream, shares) for stream in choices_by_stream(view).values()]
        )

    def _assignment(self, choices: StreamChoices, shares: Mapping[Job, int]) -> Assignment:
        view, stream = choices.view, choices.stream
        retrain_milli = shares[Job(stream.stream, Work.RETRAINING)]
        if stream.running is not None:
            retrain = choices.choose_retraining(retrain_milli)
        else:
            option = affordable_option(view, stream.retrain_options, retrain_milli, self.fixed_gamma)
            retrain = fixed_retraining(view, stream, option, retrain_milli)
        return build_assignment(
            choices,
            retrain,
            retrain_milli,
            shares[Job(stream.stream, Work.INFERENCE)],
            forecast=False,
            why_not="its fixed configuration is not offered" if retrain_milli else "it has no share",
        )


def uniform_shares(view: WindowView, inference_part_milli: int) -> dict[Job, int]:
    """Returns equal shares in multiples of δ for all streams, each split in the same way.

    Args:
        view: streams, capacity and δ.
        inference_part_milli: thousandths of a stream's share that inference gets.
    """
    largest = largest_share_milli(view.quantum_milli)
    fair = fair_shares_milli(view.capacity_milli, view.quantum_milli, len(view.streams))
    shares: dict[Job, int] = {}
    for stream, share in zip(view.streams, fair, strict=True):
        quanta = share // view.quantum_milli
        part = (quanta * inference_part_milli + FULL_GPU_MILLI // 2) // FULL_GPU_MILLI
        shares[Job(stream.stream, Work.INFERENCE)] = min(part * view.quantum_milli, largest)
        shares[Job(stream.stream, Work.RETRAINING)] = min(share - part * view.quantum_milli, largest)
    return shares


def affordable_option(
    view: WindowView, options: Sequence[RetrainOption], share_milli: int, fixed: RetrainConfig | None
) -> RetrainOption | None:
    """Returns the fixed γ, if it is offered; without one, the most expensive that the share can finish."""
    if fixed is not None:
        return next((option for option in options if option.config == fixed), None)
    affordable_gpu_s = view.training_speed.speed_at(share_milli) * us_to_seconds(
        view.window_end_us - view.now_us
    )
    finishing = [option for option in options if option.gpu_s <= affordable_gpu_s]
    return max(finishing, key=lambda option: (option.gpu_s, option.config), default=None)


@dataclass(frozen=True, slots=True)
class Oracle:
    """Plans as ``ekya`` does, with the truth in place of every estimate.

    The truth about γ, λ and models is what counts later: on all objects, of every γ and in every window.
    Measuring it costs nothing, but labels are charged, since retrainings use them. So the gap between
    ``ekya`` and this baseline is the price of estimation.
    """

    name: ClassVar[str] = "oracle"
    needs: ClassVar[Needs] = Needs(
        labels=True, inference_profile=True, micro_profile=True, true_profile=True, early_parts=True
    )

    def plan(self, view: WindowView) -> Plan:
        """Returns the plan of ``ekya``."""
        return Ekya().plan(view)


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
