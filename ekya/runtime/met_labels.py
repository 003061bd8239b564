"""Which weights have met a window's labels: what can serve again, and what has passed them already."""

from dataclasses import dataclass
from typing import Any

from ekya.core.ids import ModelVersion, StreamId


@dataclass(frozen=True, slots=True)
class Served:
    """Weights that served when labels were taken: their number, and where in the object store they are."""

    version: ModelVersion
    weights: Any


class MetLabels:
    """Of all streams. What is in the object store is known by its reference."""

    def __init__(self) -> None:
        self._judged: dict[StreamId, Served] = {}
        self._earlier: dict[StreamId, Served] = {}
        self._passed: dict[StreamId, Any] = {}
        self._passing: dict[Any, tuple[StreamId, Any]] = {}

    def begin_window(self) -> None:
        """Other crops come now."""
        self._passed, self._passing = {}, {}

    def judge(self, stream: StreamId, newest: Served) -> ModelVersion | None:
        """The newest weights meet new labels: the number of those that did before, where these are others."""
        judged, self._judged[stream] = self._judged.get(stream), newest
        self._earlier.pop(stream, None)
        if judged is None or judged.version == newest.version:
            return None
        self._earlier[stream] = judged
        return judged.version

    def go_back(self, stream: StreamId, version: ModelVersion) -> Served | None:
        """The weights of before, which serve again under this number; None where there are none."""
        earlier = self._earlier.pop(stream, None)
        if earlier is not None:
            self._judged[stream] = Served(version, earlier.weights)
        return earlier

    def is_passing(self, come: Any, passed: Any, stream: StreamId) -> None:
        """What the micro-profiler has passed through the stream's weights is on its way.

        Args:
            come: reference of the answer that says that it is there.
            passed: reference of itself, which this process does not fetch.
            stream: whose.
        """
        self._passing[come] = (stream, passed)

    def has_come(self, reference: Any) -> None:
        """Something is there for sure, perhaps this: a retraining waits for nothing that may never come."""
        if reference in self._passing:
            stream, passed = self._passing.pop(reference)
            self._passed[stream] = passed

    def passed_by(self, stream: StreamId, weights: Any) -> Any:
        """What the micro-profiler passed through these weights, if any."""
        judged = self._judged.get(stream)
        same = judged is not None and judged.weights is weights
        return self._passed.get(stream) if same else None
