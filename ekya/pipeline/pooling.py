"""The labels of each stream that may be pooled, and a trial with them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.weights import PooledLabels, SceneOf
from ekya.models.training.labelled import Examples, concatenate
from ekya.pipeline.labels import StreamLabels
from ekya.planning.profiling.pooling import AGEING, LABELLINGS, MOST_POOLED, pays


class LabelPool:
    """Keeps the newest labels of each stream, those that it is trained on now included."""

    def __init__(self) -> None:
        self._newest_first: dict[StreamId, list[StreamLabels]] = {}

    def add(self, stream: StreamId, labels: StreamLabels) -> None:
        """Adds new labels of a stream; the oldest ones are dropped."""
        self._newest_first[stream] = [labels, *self._newest_first.get(stream, [])][:LABELLINGS]

    def beside(
        self, stream: StreamId, scenes: Sequence[SceneOf]
    ) -> tuple[StreamLabels, tuple[StreamId, ...]]:
        """Returns a stream's newest labels with others of these scenes, and the streams whose they are.

        Scenes come in order, up to ``MOST_POOLED``. Of its own earlier labels those of objects that the
        newest ones show are left out, so that no trial measures on what it has learned.
        """
        newest = self._newest_first[stream][0]
        shown, left = newest.examples, MOST_POOLED * newest.count
        found: dict[StreamId, Examples] = {}
        for scene in scenes:
            own = scene.stream == stream
            parts = []
            # Another stream's older labels add less than its newest, and cost as much.
            kept = self._newest_first.get(scene.stream, [])
            for age, labels in enumerate(kept[1:] if own else kept[:1]):
                examples = labels.examples
                usable = examples.t_us >= scene.since_us
                if own:
                    usable &= examples.apart_from(shown)
                rows = np.random.default_rng((newest.window, age)).permutation(np.flatnonzero(usable))
                part = examples.take(np.sort(rows[: min(round(len(rows) * AGEING**age), left)]))
                left -= len(part)
                parts.append(part)
            if any(len(part) for part in parts):
                found[scene.stream] = concatenate(parts)
        return newest.pooled_with(list(found.values())), tuple(found)


def pooled_labels(
    both: StreamLabels, streams: tuple[StreamId, ...], alone: FamilyCurve, with_pooled: FamilyCurve
) -> PooledLabels:
    """Returns what two trials of one family say about pooled labels: without them, and with them."""
    assert both.pooled is not None
    accuracy, before = with_pooled.accuracies[-1], alone.accuracies[-1]
    objects = alone.validation_crops or len(np.unique(both.validation.examples.tracks))
    learns = pays(accuracy, before, objects)
    return PooledLabels(streams, len(both.pooled), accuracy, before, objects, learns)


def from_serving(alone: FamilyCurve, with_pooled: FamilyCurve) -> FamilyCurve:
    """Returns the curve of a trial with pooled labels, from the accuracy of the model that serves.

    Pooled labels may show new classes, whose fresh outputs make the start of their trial worse.
    """
    return replace(with_pooled, accuracies=(alone.accuracies[0], *with_pooled.accuracies[1:]))
