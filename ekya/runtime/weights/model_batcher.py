"""Owns the models of a process: which weights serve, their hot swaps, and requests to them in batches."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekya.core.events import Swapped
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost
from ekya.models.edge.forward import MOST_CROPS, MOST_IMAGES
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import Answer, MultiModelPredictor, Request
from ekya.pipeline.inference import FleetAnswer, Serving, serving


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWeights:
    """Prepared weights of a stream."""

    model: Serving
    version: ModelVersion


@dataclass(slots=True, eq=False)
class _Stream:
    """Weights of a stream.

    Attributes:
        serving: those that answer its requests.
        newest: the highest version that serves or is pending.
        on_swap, alone_until_s: as in ``ModelBatcher.add_stream``.
        pending: weights that serve from the next request on, and their event.
    """

    serving: PreparedWeights
    newest: ModelVersion
    on_swap: Callable[[Swapped, int], None]
    alone_until_s: float
    pending: tuple[PreparedWeights, Swapped] | None = None


@dataclass(slots=True, eq=False)
class _Queued:
    """A request that waits for the next call."""

    stream: StreamId
    images: NDArray[np.uint8]
    resolution: int
    answer: Future[tuple[FleetAnswer, ModelVersion]] = field(default_factory=Future)


class ModelBatcher:
    """Owns the models of all streams of a process, their hot swaps, and the queue of requests to them.

    New weights are prepared beside those that serve, in the caller's thread, and serve from the next request
    on: ``prepare_weights`` → ``serve_next`` (pending) → ``hot_swap`` (serving). Of several, the newest
    version wins.

    Requests of concurrent threads are answered in as few calls as possible: a thread that asks while no call
    is in flight makes the next call for all waiting threads, or for itself and the newest requests if more
    crops or images wait than one call takes. A request does not wait for others to arrive, only for the call
    in flight and until the share lets the next one run. Methods may be called by any thread.

    Args:
        scope: context of each call; may block before the call until its share lets it run, and after it.
        classes: the fleet's; answers index them.
        models: answers requests to several models.
        answering: context around each call, of the streams that are answered in it.
    """

    def __init__(
        self,
        scope: Callable[[], AbstractContextManager[None]],
        classes: tuple[str, ...],
        models: MultiModelPredictor,
        answering: Callable[[Sequence[StreamId]], AbstractContextManager[None]] = lambda streams: (
            nullcontext()
        ),
    ) -> None:
        self._scope, self._answering = scope, answering
        self._classes = classes
        self._models = models
        self._streams: dict[StreamId, _Stream] = {}
        self._changed = threading.Condition()
        self._queue: list[_Queued] = []
        self._is_calling = False

    @property
    def queued(self) -> int:
        """Number of requests that are not answered yet, and not part of a call yet."""
        return len(self._queue)

    def add_stream(
        self,
        stream: StreamId,
        model: EdgeModel,
        version: ModelVersion,
        on_swap: Callable[[Swapped, int], None],
        alone_until_s: float = 0.0,
    ) -> None:
        """Adds a stream with the model that serves first, which must not change any more.

        Args:
            stream: its id.
            model, version: that serve first.
            on_swap: called with the event of each hot swap and its stall in microseconds.
            alone_until_s: monotonic time until which its requests are answered in calls of their own, since
                one of them may have killed a process.
        """
        weights = self.prepare_weights(stream, model, version)
        self._streams[stream] = _Stream(weights, version, on_swap, alone_until_s)

    def remove_stream(self, stream: StreamId) -> None:
        """Removes a stream and its weights."""
        self._streams.pop(stream, None)
        self._models.remove_owner(stream)

    def serving_weights(self, stream: StreamId) -> PreparedWeights:
        """Returns the weights that serve a stream."""
        return self._streams[stream].serving

    def prepare_weights(self, stream: StreamId, model: EdgeModel, version: ModelVersion) -> PreparedWeights:
        """Prepares weights for a hot swap, which is the slow part of it."""
        ready = self.prepare_model(model)
        self._models.add_owner(stream, ready.predictor)
        return PreparedWeights(ready, version)

    def prepare_model(self, model: EdgeModel) -> Serving:
        """Returns a model ready to serve, which shares equal blocks with those that do."""
        return serving(model, self._classes, self._models.predictors)

    def serve_next(self, stream: StreamId, weights: PreparedWeights, event: Swapped) -> None:
        """Lets prepared weights serve from the next request on, unless newer ones are already pending.

        Time and stall of the event are set when it happens.
        """
        with self._changed:
            if weights.version > self._streams[stream].newest:
                self._streams[stream].newest = weights.version
                self._streams[stream].pending = (weights, event)

    def hot_swap(self, stream: StreamId) -> None:
        """Makes pending weights serve."""
        one = self._streams[stream]
        with self._changed:
            pending, one.pending = one.pending, None
        if pending is not None:
            began_ns = time.monotonic_ns()
            one.serving, event = pending
            one.on_swap(event, (time.monotonic_ns() - began_ns) // 1000)

    def answer_images(
        self, stream: StreamId, images: NDArray[np.uint8], resolution: int
    ) -> tuple[FleetAnswer, ModelVersion]:
        """Answers a stream's images, (N, S, S, 3) uint8 RGB, in one call with other streams' requests.

        Returns:
            The answer, and the version that gave it: the one that serves when the call begins.

        Raises:
            Exception: of the call, if this request alone causes it; the others are answered.
        """
        mine = _Queued(stream, images, resolution)
        with self._changed:
            self._queue.append(mine)
            self._changed.wait_for(lambda: mine.answer.done() or not self._is_calling)
            if mine.answer.done():
                return mine.answer.result()
            self._is_calling = True
        try:
            with self._scope():
                self._call(mine)
        finally:
            with self._changed:
                self._is_calling = False
                if mine in self._queue:
                    self._queue.remove(mine)
                self._changed.notify_all()
        return mine.answer.result()

    def _call(self, mine: _Queued) -> None:
        """Answers waiting requests, before the share's scope can delay the calling thread on exit."""
        with self._changed:
            batch = self._next_batch(mine)
            self._queue = [one for one in self._queue if one not in batch]
        # Before the call and for all of it, so that every answer names the version that gave it.
        for one in batch:
            self.hot_swap(one.stream)
        now_s = time.monotonic()
        alone = [one for one in batch if self._streams[one.stream].alone_until_s > now_s]
        together = [one for one in batch if one not in alone]
        for call in (together, *([one] for one in alone)):
            if call:
                self._answer(call)
        with self._changed:
            self._changed.notify_all()

    def _next_batch(self, mine: _Queued) -> list[_Queued]:
        """Returns the calling thread's request and as many of the newest others as one call takes."""
        detector = self._streams[mine.stream].serving.model.model.detector
        left = (MOST_CROPS if detector is None else MOST_IMAGES) - len(mine.images)
        batch = [mine]
        for one in reversed(self._queue):
            if one is not mine and (left := left - len(one.images)) >= 0:
                batch.append(one)
        return batch

    def _answer(self, batch: Sequence[_Queued]) -> None:
        serving = [self._streams[one.stream].serving for one in batch]
        requests = [
            Request(weights.model.predictor, one.images, one.resolution)
            for one, weights in zip(batch, serving, strict=True)
        ]
        try:
            with self._answering([one.stream for one in batch]):
                answers = self._predict(requests)
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            # One request caused the error, and only its thread should get it.
            for alone in batch:
                self._answer([alone])
            return
        for one, weights, answer in zip(batch, serving, answers, strict=True):
            one.answer.set_result((weights.model.in_fleet(answer), weights.version))

    def _predict(self, requests: Sequence[Request]) -> list[Answer]:
        try:
            return self._models.predict(requests)
        except Exception as error:
            # Here it is still known whose requests they were.
            end_process_if_gpu_is_lost(error)
            raise
