"""The uniform baseline (paper §3.2, §6.1): equal shares, a fixed split, a fixed γ."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.core.view import RetrainOption, WindowView
from ekya.errors import UserError
from ekya.scheduling.allocation import choices_by_stream, fair_shares_milli, largest_share_milli
from ekya.scheduling.pick import RetrainChoice, StreamChoices, fixed_retraining
from ekya.scheduling.protocol import Needs
from ekya.scheduling.reasons import assignment, plan_of


@dataclass(frozen=True, slots=True)
class Uniform:
    """Splits the GPUs evenly over streams, and each part between retraining and inference.

    The allocation is static: what a finished retraining leaves stays idle until the window ends.

    Attributes:
        inference_part_milli: thousandths of a stream's share for inference, 0 to 1000.
        fixed_gamma: the γ it always uses. None takes the most expensive one that its share can finish
            in what is left of the window: the strongest choice that can be fixed without knowing
            today's profiles. One that never finishes would be no baseline.

    Raises:
        UserError: the part is out of range.
    """

    inference_part_milli: int = 500
    fixed_gamma: RetrainConfig | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.inference_part_milli <= FULL_GPU_MILLI:
            raise UserError(
                f"scheduler: the uniform inference part of {self.inference_part_milli} thousandths is out of "
                "range; choose 0 to 1000"
            )

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "uniform"

    @property
    def needs(self) -> Needs:
        """The preparation it wants."""
        return Needs(labels=True, inference_profile=True, micro_profile=False)

    def plan(self, view: WindowView) -> Plan:
        """One phase; λ is the most accurate that keeps up at its share."""
        choices = choices_by_stream(view)
        largest = largest_share_milli(view.quantum_milli)
        fair = fair_shares_milli(view.capacity_milli, view.quantum_milli, len(choices))
        assignments = []
        for stream, share in zip(choices.values(), fair, strict=True):
            quanta = share // view.quantum_milli
            part = (quanta * self.inference_part_milli + FULL_GPU_MILLI // 2) // FULL_GPU_MILLI
            inference_share = min(part * view.quantum_milli, largest)
            retrain_share = min(share - part * view.quantum_milli, largest)
            assignments.append(
                assignment(
                    stream,
                    self._retraining(view, stream, retrain_share),
                    retrain_share,
                    stream.inference(inference_share),
                    inference_share,
                    forecast=False,
                    why_not="its fixed configuration is not offered" if retrain_share else "it has no share",
                )
            )
        return plan_of(view, assignments)

    def _retraining(self, view: WindowView, stream: StreamChoices, share_milli: int) -> RetrainChoice:
        if stream.stream.running is not None:
            return stream.retraining(share_milli)
        option = self._fixed_option(view, stream.stream.retrain_options, share_milli)
        return fixed_retraining(view, stream.stream, option, share_milli)

    def _fixed_option(
        self, view: WindowView, options: tuple[RetrainOption, ...], share_milli: int
    ) -> RetrainOption | None:
        if self.fixed_gamma is not None:
            return next((option for option in options if option.config == self.fixed_gamma), None)
        affordable_gpu_s = view.training_speed.speed(share_milli) * us_to_seconds(
            view.window_end_us - view.now_us
        )
        finishing = [option for option in options if option.gpu_s <= affordable_gpu_s]
        return max(finishing, key=lambda option: (option.gpu_s, option.config), default=None)
