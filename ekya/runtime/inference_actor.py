"""The actor `inference/<stream>`, or `inference/gpu-<n>` where the streams of a GPU share a process."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import cv2

from ekya.core.configs import InferenceConfig
from ekya.core.events import Event
from ekya.core.ids import JobId, ModelVersion, StreamId
from ekya.gpu.protocol import Resized, ShareJob
from ekya.runstate import StreamRow
from ekya.runtime.lending import LentWeights
from ekya.runtime.orders import ProcessOrders, StreamOrders
from ekya.runtime.ready import Ready
from ekya.runtime.shared_process import SharedProcess
from ekya.runtime.standing_back import stand_back
from ekya.runtime.stream_inference import StreamInference
from ekya.setup import fleet_classes
from ekya.streams.feed import Feed
from ekya.workers.collector import WindowMaterial

_LOG = logging.getLogger(__name__)


class InferenceActor:
    """The inferences of the streams of one process: each at its own pace, their models asked together.

    Every call about a stream that is not here, since it failed or is set aside, does nothing.
    """

    def __init__(self, orders: ProcessOrders) -> None:
        stand_back()
        cv2.setNumThreads(1)
        common = orders.common
        # All cameras open at the same time.
        feeds = [_feed_of(one) for one in orders.streams]
        handle = common.shares.attach(ShareJob(orders.name, "inference", 0, orders.gpu))
        self._process = SharedProcess(handle, common.device, common.way)
        self._streams = {
            one.stream: StreamInference(one, feed, self._process)
            for one, feed in zip(orders.streams, feeds, strict=True)
        }

    def ready(self) -> dict[StreamId, Ready]:
        """Warms models up and says what a frame costs, of each stream."""
        return {stream: one.ready() for stream, one in self._streams.items()}

    def process(self) -> int:
        """Number of the process that this runs in, for whoever looks after it."""
        return os.getpid()

    def begin(self, started_monotonic_ns: int) -> None:
        """Lets frames come."""
        for one in self._streams.values():
            one.begin(started_monotonic_ns)

    def join(self, orders: StreamOrders, started_monotonic_ns: int) -> None:
        """Makes a stream's inference here, in place of one that died with its process or by itself."""
        self.leave(orders.stream)
        made = StreamInference(orders, _feed_of(orders), self._process)
        made.begin(started_monotonic_ns)
        self._streams[orders.stream] = made

    def leave(self, stream: StreamId) -> None:
        """A stream's inference ends, and the others' go on."""
        one = self._streams.pop(stream, None)
        if one is not None:
            one.leave()

    def configure(
        self, stream: StreamId, config: InferenceConfig, share_milli: int, serial: int
    ) -> Resized | None:
        """As the stream's."""
        one = self._streams.get(stream)
        return None if one is None else one.configure(config, share_milli, serial)

    def swap(
        self,
        stream: StreamId,
        weights: bytes,
        validation_accuracy: float,
        version: ModelVersion,
        job: JobId,
    ) -> None:
        """As the stream's."""
        one = self._streams.get(stream)
        if one is not None:
            one.swap(weights, validation_accuracy, version, job)

    def take(
        self,
        stream: StreamId,
        lent: LentWeights,
        validation_accuracy: float,
        version: ModelVersion,
        job: JobId,
    ) -> None:
        """As the stream's."""
        one = self._streams.get(stream)
        if one is not None:
            one.take(lent, validation_accuracy, version, job)

    def try_loan(self, stream: StreamId, lent: LentWeights) -> None:
        """As the stream's."""
        self._streams[stream].try_loan(lent)

    def roll_back(self, stream: StreamId, weights: bytes, version: ModelVersion, of: ModelVersion) -> None:
        """As the stream's."""
        one = self._streams.get(stream)
        if one is not None:
            one.roll_back(weights, version, of)

    def material(self, stream: StreamId, window: int) -> WindowMaterial:
        """As the stream's."""
        return self._streams[stream].material(window)

    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened to any of the streams; waits for news."""
        return self._process.mailbox.take(timeout_s)

    def end(self, horizon_us: int) -> list[StreamRow]:
        """Stops all, answers what is still open up to the end of the run, and says how much came.

        Of a stream that fails in this nothing is said.
        """
        streams = list(self._streams.values())
        for one in streams:
            one.stop()
        self._process.share.release()
        rows = []
        with ThreadPoolExecutor(max(len(streams), 1)) as pool:
            for ending in [pool.submit(one.end, horizon_us) for one in streams]:
                try:
                    rows.append(ending.result())
                except Exception:
                    _LOG.exception("an inference could not end in order")
        return rows


def _feed_of(orders: StreamOrders) -> Feed:
    fleet = orders.common.fleet
    return Feed(fleet.streams[orders.place].played, fleet_classes(fleet), orders.stream)
