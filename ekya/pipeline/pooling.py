"""The labels of each stream that may be pooled, and a trial with them."""

from collections.abc import Sequence

import numpy as np

from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.weights import PooledLabels, SceneOf
from ekya.models.training.labelled import Examples, concatenate
from ekya.pipeline.labels import StreamLabels
from ekya.planning.profiling.pooling import AGEING, LABELLINGS, pays


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
        """Returns a stream's newest labels with all others of these scenes, and the streams whose they are.

        Of its own earlier labels those of objects that the newest ones show are left out, so that no trial
        measures on what it has learned.
        """
        newest = self._newest_first[stream][0]
        shown = newest.examples.tracks
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
                    usable &= ~np.isin(examples.tracks, shown)
                rows = np.random.default_rng((newest.window, age)).permutation(np.flatnonzero(usable))
                parts.append(examples.take(np.sort(rows[: round(len(rows) * AGEING**age)])))
            if any(len(part) for part in parts):
                found[scene.stream] = concatenate(parts)
        return newest.pooled_with(list(found.values())), tuple(found)


def pooled_labels(
    both: StreamLabels, streams: tuple[StreamId, ...], alone: FamilyCurve, with_pooled: FamilyCurve
) -> PooledLabels:
    """Returns what two trials of one family say about pooled labels: without them, and with them."""
    assert both.pooled is not None
    accuracy, before = with_pooled.accuracies[-1], alone.accuracies[-1]
    objects = alone.validation_crops or both.different_objects(None)
    learns = pays(accuracy, before, objects)
    return PooledLabels(streams, len(both.pooled), accuracy, before, objects, learns)
