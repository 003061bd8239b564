"""Inputs of a retraining of a stream, for this server or another one."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from ekya.core.units import StreamId
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.runtime.actor_errors import in_words
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.ready import Ready

if TYPE_CHECKING:
    from ekya.models.training.exemplars import ExemplarMemory

_LOG = logging.getLogger(__name__)
_NO_LABELS = "there are no labels to train on"


@dataclass(frozen=True, slots=True, eq=False)
class StreamRetrainInputs:
    """Arguments of ``retraining_of``, except for γ and the window.

    Attributes:
        weights: of the model that serves, or is about to.
        labels: of the window.
        memory: exemplars of earlier windows.
        settings: of the stream.
    """

    weights: bytes
    labels: StreamLabels
    memory: "ExemplarMemory"
    settings: PreparationSettings


@dataclass(frozen=True, slots=True, eq=False)
class MaterialToFetch:
    """The same as references into the object store; None where there were no labels."""

    weights: Any
    labels: Any
    memory: Any
    settings: PreparationSettings

    def fetch(self, timeout_s: float) -> StreamRetrainInputs:
        """Fetches the material. Thread-safe.

        Raises:
            LookupError: part of it is lost or never existed; the message says which.
            TimeoutError: it did not arrive in time.
        """
        if self.labels is None:
            raise LookupError(_NO_LABELS)
        try:
            weights, labels, memory = ray.get([self.weights, self.labels, self.memory], timeout=timeout_s)
        except GetTimeoutError:
            raise TimeoutError(f"what a retraining needs has not come within {timeout_s:g} s") from None
        except RayError as error:
            raise LookupError(f"what a retraining needs is lost: {in_words(error)}") from error
        if labels is None:
            raise LookupError(_NO_LABELS)
        return StreamRetrainInputs(weights, labels, memory, self.settings)


class RetrainInputs:
    """Retraining inputs of all streams.

    Args:
        actors: hold the inputs.
        ready: settings of their streams.
        keep_labels: callback for the labels of each stream as soon as this process has them.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: Mapping[StreamId, Ready],
        keep_labels: Callable[[StreamId, StreamLabels], None],
    ) -> None:
        self._actors = actors
        self._ready = ready
        self._keep_labels = keep_labels
        self._labels: dict[StreamId, Any] = {}

    def begin_window(self) -> None:
        """Forgets the labels of the last window."""
        self._labels = {}

    def fetch_labels(self, stream: StreamId, window: int) -> None:
        """Fetches and keeps new labels; they stay in the object store while the window lasts."""
        reference = self._actors.preparation.labels.remote(window, stream)
        try:
            labels = ray.get(reference)
        except RayError as error:
            _LOG.error("%s: its labels are lost: %s", stream, in_words(error))
            return
        self._labels[stream] = reference
        if labels is not None:
            self._keep_labels(stream, labels)

    def labels(self, stream: StreamId) -> Any:
        """Returns the reference to the window's labels; None before they exist."""
        return self._labels.get(stream)

    def of(self, stream: StreamId) -> MaterialToFetch:
        """Returns references to the inputs of a retraining that would begin now; does not block."""
        own = self._actors.streams[stream]
        memory = own.retraining.memory.remote(stream)
        return MaterialToFetch(own.newest_weights, self.labels(stream), memory, self._ready[stream].settings)
