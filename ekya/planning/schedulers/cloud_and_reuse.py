"""Baselines whose weights are not trained here: in the cloud, or in earlier windows (paper §6.5, Table 4).

To the cloud each stream's sampled video is uploaded, its model is retrained in no time ("instantaneous", as
the paper grants the cloud), and the model is downloaded. All streams share one uplink and one downlink. Sizes
are in megabits, rates in megabits a second, times in seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.units import StreamId, seconds_to_us, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.core.weights import CachedModel, Elsewhere
from ekya.planning.schedulers.reasons import inference_plan
from ekya.planning.schedulers.scheduler import Gamma, Mbps, Needs, SchedulerOptions


class LinkOrder(StrEnum):
    """Order of the transfers on a link.

    ``in-turn``: one transfer after the other; the link is busy just as long, and the first ones are done
    sooner. ``shared``: all together at equal rates, like uncoordinated connections.
    """

    IN_TURN = "in-turn"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Network:
    """Links between an edge server and the cloud.

    Attributes:
        uplink_mbps, downlink_mbps: above 0.
        order: of the transfers on each of the two links.
    """

    uplink_mbps: float
    downlink_mbps: float
    order: LinkOrder = LinkOrder.IN_TURN


CELLULAR = Network(5.1, 17.5)
"""The cellular network of Table 4."""

VIDEO_MBPS = 4.0
"""A compressed 720p stream (§6.5)."""

SAMPLED_PART = 0.1
"""The part of it that is sent for retraining (§6.5)."""

MODEL_MEGABITS = 398.0
"""A ResNet18's weights in megabits, as the paper counts them (§6.5)."""


def sample_megabits(window_s: float) -> float:
    """Returns the size of a stream's training data of one window: 160 Mb for the paper's 400 s."""
    return VIDEO_MBPS * SAMPLED_PART * window_s


def arrivals_s(network: Network, uploads_megabits: Sequence[float]) -> tuple[float, ...]:
    """Returns when each stream's model arrives, from the moment when the first upload may begin.

    A model is downloaded as soon as its own data is uploaded; uploads and downloads do not slow each other.
    """
    up = transfers_done_s([0.0] * len(uploads_megabits), uploads_megabits, network.uplink_mbps, network.order)
    models = [MODEL_MEGABITS] * len(up)
    return transfers_done_s(up, models, network.downlink_mbps, network.order)


def transfers_done_s(
    ready_s: Sequence[float], megabits: Sequence[float], mbps: float, order: LinkOrder
) -> tuple[float, ...]:
    """Returns when each transfer over one link is done.

    Args:
        ready_s: when each may begin.
        megabits: size of each.
        mbps: the link's rate, above 0.
        order: in turn (those that are ready first go first, equal ones in their order), or shared.
    """
    if order is LinkOrder.IN_TURN:
        return _in_turn(ready_s, megabits, mbps)
    return _shared(ready_s, megabits, mbps)


def _in_turn(ready_s: Sequence[float], megabits: Sequence[float], mbps: float) -> tuple[float, ...]:
    done = [0.0] * len(ready_s)
    free_s = 0.0
    for index in sorted(range(len(ready_s)), key=lambda one: (ready_s[one], one)):
        free_s = done[index] = max(free_s, ready_s[index]) + megabits[index] / mbps
    return tuple(done)


def _shared(ready_s: Sequence[float], megabits: Sequence[float], mbps: float) -> tuple[float, ...]:
    """Fair sharing by virtual time: the megabits carried by one transfer since the link was last empty.

    A transfer that begins at virtual time v is done at v + its own size.
    """
    done = [0.0] * len(ready_s)
    waiting = sorted(range(len(ready_s)), key=lambda one: (ready_s[one], one), reverse=True)
    active: dict[int, float] = {}
    now_s = carried = 0.0
    while waiting or active:
        if not active:
            now_s = max(now_s, ready_s[waiting[-1]])
        next_ready_s = ready_s[waiting[-1]] if waiting else float("inf")
        if next_ready_s <= now_s:
            index = waiting.pop()
            active[index] = carried + megabits[index]
            continue
        first = min(active, key=lambda one: (active[one], one))
        end_s = now_s + (active[first] - carried) * len(active) / mbps
        if end_s <= next_ready_s:
            now_s, carried = end_s, active.pop(first)
            done[first] = now_s
        else:
            carried += (next_ready_s - now_s) * mbps / len(active)
            now_s = next_ready_s
    return tuple(done)


class CloudOptions(SchedulerOptions):
    """Options of ``cloud``: its network, and the γ that it uses."""

    up: Mbps = CELLULAR.uplink_mbps
    down: Mbps = CELLULAR.downlink_mbps
    order: Annotated[LinkOrder, Field(title="|".join(LinkOrder))] = CELLULAR.order
    gamma: Gamma = None


@dataclass(frozen=True, slots=True)
class Cloud:
    """Gives all GPUs to inference, in equal shares; new weights come from the cloud.

    Uploads begin when the window opens, and the golden model labels in the cloud as well. A stream that
    comes back later waits until the models under way have arrived, and sends less, since it has seen less. A
    model that has not arrived when the window ends serves when it arrives, and only then its stream sends
    data again.

    Attributes:
        network: the network to the cloud.
        fixed_gamma: the γ that the cloud uses; None is the most thorough one, since the cloud has GPUs
            enough.
    """

    name: ClassVar[str] = "cloud"
    needs: ClassVar[Needs] = Needs(
        labels=False,
        inference_profile=True,
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


@dataclass(frozen=True, slots=True)
class Reuse:
    """Serves in every window the kept model that was trained on the most similar mix of classes.

    All GPUs go to inference, in equal shares, since nothing is retrained.
    """

    name: ClassVar[str] = "reuse"
    needs: ClassVar[Needs] = Needs(
        labels=True,
        inference_profile=True,
        micro_profile=False,
        fixed_gamma=True,
        fixed_shares=True,
        kept_models=True,
    )

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase; λ is the most accurate that keeps up at its share."""

        def weights(stream: StreamView) -> tuple[RetrainOption | None, Elsewhere | None]:
            if stream.running is not None:
                return stream.running.option, stream.running.elsewhere
            model = closest_model(stream.histogram, stream.cached)
            if model is None:
                return None, None
            return RetrainOption(model.config, stream.accuracy, 0.0), Elsewhere(view.now_us, model.trained_in)

        return inference_plan(view, weights, why_not="nothing is kept that could serve again")


def closest_model(histogram: Sequence[int], cached: Sequence[CachedModel]) -> CachedModel | None:
    """Returns the kept model whose labels had the most similar mix of classes.

    Similar is a small Euclidean distance between the class frequencies (§6.5). Ties go to the youngest
    model, and within one window to the γ that sorts last. None where nothing is kept, or nothing was
    labelled.

    Args:
        histogram: labels of each class today; classes missing at its end count 0.
        cached: kept models, in any order.
    """
    known = [model for model in cached if sum(model.histogram) > 0]
    if sum(histogram) == 0 or not known:
        return None
    width = max(len(histogram), *(len(model.histogram) for model in known))
    today = _frequencies(histogram, width)

    def rank(model: CachedModel) -> tuple[float, ...]:
        distance = math.dist(today, _frequencies(model.histogram, width))
        # Rounded, so that rounding errors break no tie.
        return round(distance, 12), -model.trained_in, *(-value for value in astuple(model.config))

    return min(known, key=rank)


def _frequencies(histogram: Sequence[int], width: int) -> list[float]:
    """Returns the part of each of ``width`` classes."""
    total = sum(histogram)
    return [*(count / total for count in histogram), *[0.0] * (width - len(histogram))]
