"""The labels of each stream that may be pooled, and a trial with them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.weights import PooledLabels, SceneOf
from ekya.models.training.labelled import Examples, concatenate
from ekya.pipeline.labels import StreamLabels
from ekya.planning.adaptation.label_pooling import AGEING, LABELLINGS, MOST_POOLED, pooling_pays


class LabelPool:
    """Keeps the newest labels of each stream, those that it is trained on now included."""

    def __init__(self) -> None:
        self._newest_first: dict[StreamId, list[StreamLabels]] = {}

    def add(self, stream: StreamId, labels: StreamLabels) -> None:
        """Adds new labels of a stream; the oldest ones are dropped."""
        self._newest_first[stream] = [labels, *self._newest_first.get(stream, [])][:LABELLINGS]

    def forget(self, stream: StreamId) -> None:
        """Forgets the labels of a stream."""
        self._newest_first.pop(stream, None)

    def beside(
        self, stream: StreamId, scenes: Sequence[SceneOf]
    ) -> tuple[StreamLabels, tuple[StreamId, ...]]:
        """Returns a stream's newest labels with others of these scenes, and the streams whose they are.

        Scenes come in order, up to ``MOST_POOLED``.
        """
        newest = self._newest_first[stream][0]
        left = MOST_POOLED * newest.count
        found: dict[StreamId, list[Examples]] = {}
        for other, age, usable in self._usable(stream, scenes):
            rows = np.random.default_rng((newest.window, age)).permutation(len(usable))
            part = usable.take(np.sort(rows[: min(round(len(rows) * AGEING**age), left)]))
            if len(part):
                left -= len(part)
                found.setdefault(other, []).append(part)
        return newest.pooled_with([concatenate(parts) for parts in found.values()]), tuple(found)

    def _usable(
        self, stream: StreamId, scenes: Sequence[SceneOf]
    ) -> Iterator[tuple[StreamId, int, Examples]]:
        """Yields what shows a scene: whose it is, how many of its labellings are newer, and the examples.

        Of a stream's own earlier labels those of objects that the newest ones show are left out, so that no
        trial measures on what it has learned.
        """
        newest, *earlier = self._newest_first[stream]
        shown = newest.examples
        for scene in scenes:
            own = scene.stream == stream
            # Another stream's older labels add less than its newest, and cost as much.
            kept = earlier if own else self._newest_first.get(scene.stream, [])[:1]
            for age, labels in enumerate(kept):
                examples = labels.examples
                usable = examples.t_us >= scene.since_us
                if own:
                    usable &= examples.apart_from(shown)
                yield scene.stream, age, examples.take(np.flatnonzero(usable))


def judge_pooled(
    both: StreamLabels, streams: tuple[StreamId, ...], alone: FamilyCurve, with_pooled: FamilyCurve
) -> tuple[PooledLabels, FamilyCurve]:
    """Returns what two trials of one family say about pooled labels, and the curve with them.

    The curve begins at the accuracy of the model that serves: pooled labels may show new classes, whose fresh
    outputs make the start of their trial worse.

    Args:
        both: the newest labels with the pooled ones.
        streams: whose the pooled ones are.
        alone, with_pooled: the trials, without and with the pooled labels.
    """
    assert both.pooled is not None
    accuracy, before = with_pooled.accuracies[-1], alone.accuracies[-1]
    objects = alone.validation_crops or len(np.unique(both.validation.examples.tracks))
    learns = pooling_pays(accuracy, before, objects)
    curve = replace(with_pooled, accuracies=(alone.accuracies[0], *with_pooled.accuracies[1:]))
    return PooledLabels(streams, len(both.pooled), accuracy, before, objects, learns), curve
