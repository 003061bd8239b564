"""Arrival times of models that are retrained in the cloud (paper §6.5, Table 4).

Each stream's sampled video is uploaded, its model is retrained in no time ("instantaneous", as the paper
grants the cloud), and the model is downloaded. All streams share one uplink and one downlink. Sizes are in
megabits, rates in megabits a second, times in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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
