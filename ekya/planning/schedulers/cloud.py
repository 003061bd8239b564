"""The baseline that retrains in the cloud (paper §6.5, Table 4)."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment, Plan
from ekya.core.units import StreamId, seconds_to_us, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.allocation import Job, JobKind, choices_by_stream, even_inference
from ekya.planning.schedulers.network import CELLULAR, MODEL_MEGABITS, Network, arrivals_s, sample_megabits
from ekya.planning.schedulers.pick import StreamChoices, fixed_retraining
from ekya.planning.schedulers.reasons import assignment, plan_of
from ekya.planning.schedulers.scheduler import Needs


@dataclass(frozen=True, slots=True)
class Cloud:
    """Gives all GPUs to inference, in equal shares; new weights come from the cloud.

    Uploads begin when the window opens, and the golden model labels in the cloud as well. A stream that
    comes back later waits until the models under way have arrived, and sends less, since it has seen less. A
    model that has not arrived when the window ends is out of date and is given up.

    Attributes:
        network: the network to the cloud.
        fixed_gamma: the γ that the cloud uses; None is the most thorough one, since the cloud has GPUs
            enough.
        model_megabits: size of a model.
    """

    network: Network = CELLULAR
    fixed_gamma: RetrainConfig | None = None
    model_megabits: float = MODEL_MEGABITS

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "cloud"

    @property
    def needs(self) -> Needs:
        """No local preparation."""
        return Needs(
            labels=False,
            inference_profile=False,
            micro_profile=False,
            fixed_gamma=True,
            fixed_shares=True,
            elsewhere=True,
        )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        choices = choices_by_stream(view)
        shares = even_inference(view, choices)
        arrivals = self._arrivals_us(view)
        return plan_of(
            view,
            [
                self._assignment(choice, shares[Job(stream, JobKind.INFERENCE)], arrivals.get(stream))
                for stream, choice in choices.items()
            ],
        )

    def _arrivals_us(self, view: WindowView) -> dict[StreamId, int]:
        """Returns when models arrive, for streams that have none under way and can be retrained."""
        waiting = sorted(stream.stream for stream in view.streams if self._gamma(stream) is not None)
        under_way = [
            s.running.elsewhere.arrives_us for s in view.streams if s.running and s.running.elsewhere
        ]
        free_us = max((view.now_us, *under_way))
        sample = sample_megabits(us_to_seconds(view.window_end_us - view.now_us))
        done_s = arrivals_s(self.network, [sample] * len(waiting), self.model_megabits)
        return {
            stream: free_us + seconds_to_us(after_s) for stream, after_s in zip(waiting, done_s, strict=True)
        }

    def _assignment(self, choice: StreamChoices, share_milli: int, arrives_us: int | None) -> Assignment:
        stream = choice.stream
        running = stream.running
        option = running.option if running else self._gamma(stream)
        elsewhere = running.elsewhere if running else None
        if arrives_us is not None:
            elsewhere = Elsewhere(arrives_us)
        return assignment(
            choice,
            fixed_retraining(choice.view, stream, option, 0),
            0,
            choice.inference(share_milli),
            share_milli,
            forecast=False,
            why_not="its configuration is not offered",
            elsewhere=elsewhere,
        )

    def _gamma(self, stream: StreamView) -> RetrainOption | None:
        if self.fixed_gamma is not None:
            return next((o for o in stream.retrain_options if o.config == self.fixed_gamma), None)
        return max(stream.retrain_options, key=lambda option: option.config.thoroughness, default=None)
