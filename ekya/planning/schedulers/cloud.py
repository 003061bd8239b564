"""The baseline that retrains in the cloud (paper §6.5, Table 4)."""

from dataclasses import dataclass
from typing import ClassVar

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.units import StreamId, seconds_to_us, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.network import CELLULAR, Network, arrivals_s, sample_megabits
from ekya.planning.schedulers.reasons import inference_plan
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
    """

    name: ClassVar[str] = "cloud"
    needs: ClassVar[Needs] = Needs(
        labels=False,
        inference_profile=False,
        micro_profile=False,
        fixed_gamma=True,
        fixed_shares=True,
        elsewhere=True,
    )
    network: Network = CELLULAR
    fixed_gamma: RetrainConfig | None = None

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""
        arrivals = self._arrivals_us(view)

        def weights(stream: StreamView) -> tuple[RetrainOption | None, Elsewhere | None]:
            running = stream.running
            option = running.option if running else self._gamma(stream)
            if stream.stream in arrivals:
                return option, Elsewhere(arrivals[stream.stream])
            return option, running.elsewhere if running else None

        return inference_plan(view, weights, why_not="its configuration is not offered")

    def _arrivals_us(self, view: WindowView) -> dict[StreamId, int]:
        """Returns when models arrive, for streams that have none under way and can be retrained."""
        waiting = [stream.stream for stream in view.streams if self._gamma(stream) is not None]
        under_way = [
            s.running.elsewhere.arrives_us for s in view.streams if s.running and s.running.elsewhere
        ]
        free_us = max((view.now_us, *under_way))
        sample = sample_megabits(us_to_seconds(view.window_end_us - view.now_us))
        done_s = arrivals_s(self.network, [sample] * len(waiting))
        return {
            stream: free_us + seconds_to_us(after_s) for stream, after_s in zip(waiting, done_s, strict=True)
        }

    def _gamma(self, stream: StreamView) -> RetrainOption | None:
        if self.fixed_gamma is not None:
            return next((o for o in stream.retrain_options if o.config == self.fixed_gamma), None)
        return max(stream.retrain_options, key=lambda option: option.config.thoroughness, default=None)
