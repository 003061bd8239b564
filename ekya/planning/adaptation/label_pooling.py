"""Pooling labels of one scene: of cameras that drift together (ECCO), and a camera's own earlier ones.

A few seconds of a street show few objects, and a model that learns from these alone is wrong about the next.
"""

from collections.abc import Mapping

from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import SceneOf

TOGETHER_US = 15 * US_PER_S
"""Longest time between two streams' drifts that may be one change, as when it begins to rain: a gradual
change is noticed up to eleven seconds later on one street than on another."""

LABELLINGS = 4
"""Newest labellings of a stream that are kept to be pooled."""

MOST_POOLED = 3
"""Most pooled labels, in multiples of the newest ones: a retraining on all has to fit into a window."""

AGEING = 0.5
"""Part of a labelling's examples that is pooled, of the part of the next newer one."""


def same_scene(stream: StreamId, scenes: Mapping[StreamId, int | None]) -> tuple[SceneOf, ...]:
    """Returns the stream itself, and the others whose last drift began when its own did, the nearest first.

    Args:
        stream: whose labels are pooled.
        scenes: by stream, the stream time of its last drift; None before the first.
    """
    since_us = scenes[stream]
    if since_us is None:
        return (SceneOf(stream, 0),)
    apart_us = {
        SceneOf(other, began_us): abs(began_us - since_us)
        for other, began_us in scenes.items()
        if other != stream and began_us is not None
    }
    together = [scene for scene, apart in apart_us.items() if apart <= TOGETHER_US]
    return (SceneOf(stream, since_us), *sorted(together, key=lambda one: (apart_us[one], one.stream)))
