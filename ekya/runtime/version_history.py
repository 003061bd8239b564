"""Tracks which weights have been evaluated on a window's labels.

Used to roll back to earlier weights, and to reuse the micro-profiler's forward passes in a retraining.
"""

from dataclasses import dataclass
from typing import Any

from ekya.core.units import ModelVersion, StreamId


@dataclass(frozen=True, slots=True)
class Served:
    """Weights that served when labels were taken: their version and reference in the object store."""

    version: ModelVersion
    weights: Any


class VersionHistory:
    """Evaluated weights of all streams. Objects in the object store are identified by their reference."""

    def __init__(self) -> None:
        self._judged: dict[StreamId, Served] = {}
        self._earlier: dict[StreamId, Served] = {}
        self._passed: dict[StreamId, Any] = {}
        self._passing: dict[Any, tuple[StreamId, Any]] = {}

    def begin_window(self) -> None:
        """Forgets forward passes on the crops of the last window."""
        self._passed, self._passing = {}, {}

    def judge(self, stream: StreamId, newest: Served) -> ModelVersion | None:
        """Records that the newest weights are evaluated on new labels.

        Returns:
            Version of the weights that were evaluated before; None if they are the same.
        """
        judged, self._judged[stream] = self._judged.get(stream), newest
        self._earlier.pop(stream, None)
        if judged is None or judged.version == newest.version:
            return None
        self._earlier[stream] = judged
        return judged.version

    def go_back(self, stream: StreamId, version: ModelVersion) -> Served | None:
        """Returns the earlier weights, which serve again under this version; None if there are none."""
        earlier = self._earlier.pop(stream, None)
        if earlier is not None:
            self._judged[stream] = Served(version, earlier.weights)
        return earlier

    def is_passing(self, come: Any, passed: Any, stream: StreamId) -> None:
        """Records that the micro-profiler's forward passes of the stream's weights are being copied.

        Args:
            come: reference of a reply that says that they have arrived in the object store.
            passed: reference to the forward passes, which this process does not fetch.
            stream: to which they belong.
        """
        self._passing[come] = (stream, passed)

    def has_come(self, reference: Any) -> None:
        """Marks forward passes as available, if the reference is one of theirs.

        Only then may a retraining depend on them: it must not wait for something that may never arrive.
        """
        if reference in self._passing:
            stream, passed = self._passing.pop(reference)
            self._passed[stream] = passed

    def passed_by(self, stream: StreamId, weights: Any) -> Any:
        """Returns the reference to the micro-profiler's forward passes of these weights, if any."""
        judged = self._judged.get(stream)
        same = judged is not None and judged.weights is weights
        return self._passed.get(stream) if same else None
