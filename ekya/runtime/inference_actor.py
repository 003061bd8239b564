"""Actor `inference/<stream>`, or `inference/gpu-<n>` where the streams of a GPU share a process."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np

from ekya.core.configs import InferenceConfig
from ekya.core.events import Event
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.predictors import Predictors
from ekya.pipeline.base_model import base_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.inference import Classifier
from ekya.pipeline.setup import crop_side, fleet_classes
from ekya.results.storage.run_state import StreamRow
from ekya.runtime.actor_kinds import ProcessConfig, StreamActorConfig
from ekya.runtime.cuda_ipc_transfer import LentWeights
from ekya.runtime.mailbox import Mailbox
from ekya.runtime.ready import Ready
from ekya.runtime.shared_process import SharedProcess
from ekya.runtime.stream_inference import StreamInference
from ekya.streams.ingest.feed import Feed
from ekya.system.files import write_bytes_atomic
from ekya.system.priority import lower_priority

_LOG = logging.getLogger(__name__)


class InferenceActor:
    """Inference of the streams of one process: each at its own pace, with shared model calls.

    A call for a stream that is not in this process, since it failed or was set aside, does nothing.

    Args:
        orders: of the process.
        loaded: replies of actors that must be loaded first; Ray makes this actor once they have arrived.
    """

    def __init__(self, orders: ProcessConfig, *loaded: None) -> None:
        lower_priority()
        cv2.setNumThreads(1)
        self._orders = orders
        # All cameras open concurrently.
        self._feeds = [_feed_of(one) for one in orders.streams]
        self._streams: dict[StreamId, StreamInference] = {}
        self._mailbox = Mailbox()
        self._process: SharedProcess | None = None
        self._attaching = threading.Lock()
        self._savers: list[threading.Thread] = []

    def base_weights(self) -> tuple[bytes, None]:
        """Makes the base model of every stream; its files are written in the background.

        The second return value lets a caller wait for the model without fetching it.

        Raises:
            UserError: as ``base_model``.
        """
        model = base_model(self._orders.common.fleet, self._orders.common.seed)
        saver = threading.Thread(target=self._save_base, args=(to_bytes(model, half=True),), name="saver")
        saver.start()
        self._savers.append(saver)
        return to_bytes(model), None

    def load(self, which: tuple[int, ...], *weights: bytes) -> dict[StreamId, Ready]:
        """Begins with the streams of its orders: warms up their models and returns their settings.

        Args:
            which: index into ``weights`` for each stream; most begin with the same ones.
            weights: as safetensors bytes.
        """
        process, models = self._attached(), [from_bytes(one) for one in weights]
        for one, feed, served in zip(self._orders.streams, self._feeds, which, strict=True):
            self._streams[one.stream] = StreamInference(one, feed, process, models[served])
        self._feeds = []
        return {stream: one.ready() for stream, one in self._streams.items()}

    def warm_up(self, weights: bytes) -> None:
        """Runs the slow first forward passes of a model, before any stream is here."""
        common = self._orders.common
        model = from_bytes(weights)
        # On the CPU in any case: a process that has begun to use a GPU occupies some of its memory.
        way = common.way if common.device == "cpu" else PLAIN
        classifier = Classifier(model, fleet_classes(common.fleet), Predictors("cpu", way))
        side = crop_side(common.fleet)
        for resolution in common.fleet.inference.resolutions:
            classifier.predict(np.zeros((1, side, side, 3), np.uint8), resolution)

    def process(self) -> int:
        """Returns the pid of this process."""
        return os.getpid()

    def begin(self, started_monotonic_ns: int) -> None:
        """Starts all streams."""
        for one in self._streams.values():
            one.begin(started_monotonic_ns)

    def join(self, orders: StreamActorConfig, weights: bytes, started_monotonic_ns: int) -> None:
        """Makes a stream's inference here, in place of one that died with its process or by itself."""
        self.leave(orders.stream)
        made = StreamInference(orders, _feed_of(orders), self._attached(), from_bytes(weights))
        made.begin(started_monotonic_ns)
        self._streams[orders.stream] = made

    def leave(self, stream: StreamId) -> None:
        """Ends a stream's inference; the others' go on."""
        one = self._streams.pop(stream, None)
        if one is not None:
            one.leave()

    def configure(
        self, stream: StreamId, config: InferenceConfig, share_milli: int, serial: int
    ) -> Resized | None:
        """Calls ``StreamInference.configure``."""
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
        """Calls ``StreamInference.swap``."""
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
        """Calls ``StreamInference.take``."""
        one = self._streams.get(stream)
        if one is not None:
            one.take(lent, validation_accuracy, version, job)

    def try_loan(self, stream: StreamId, lent: LentWeights) -> None:
        """Calls ``StreamInference.try_loan``."""
        self._streams[stream].try_loan(lent)

    def roll_back(self, stream: StreamId, weights: bytes, version: ModelVersion, of: ModelVersion) -> None:
        """Calls ``StreamInference.roll_back``."""
        one = self._streams.get(stream)
        if one is not None:
            one.roll_back(weights, version, of)

    def material(self, stream: StreamId, window: int) -> WindowMaterial:
        """Calls ``StreamInference.material``."""
        return self._streams[stream].material(window)

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events of all streams; waits up to the timeout for the first."""
        return self._mailbox.take(timeout_s)

    def end(self, horizon_us: int) -> list[StreamRow]:
        """Stops all streams, answers the frames up to the end of the run, and returns frame counts.

        A stream that fails in this has no row.
        """
        streams = list(self._streams.values())
        for one in streams:
            one.stop()
        for saver in self._savers:
            saver.join()
        if self._process is not None:
            self._process.share.release()
        rows = []
        with ThreadPoolExecutor(max(len(streams), 1)) as pool:
            for ending in [pool.submit(one.end, horizon_us) for one in streams]:
                try:
                    rows.append(ending.result())
                except Exception:
                    _LOG.exception("an inference could not end in order")
        return rows

    def _save_base(self, weights: bytes) -> None:
        for stream in self._orders.common.fleet.streams:
            write_bytes_atomic(self._orders.common.folder.model(stream.id, BASE_VERSION), weights)

    def _attached(self) -> SharedProcess:
        """Returns the process's share and models, attached on first use: a spare process holds no share."""
        common = self._orders.common
        with self._attaching:
            if self._process is None:
                handle = common.shares.attach(ShareJob(self._orders.name, "inference", 0, self._orders.gpu))
                self._process = SharedProcess(handle, common.device, common.way, self._mailbox)
            return self._process


def _feed_of(orders: StreamActorConfig) -> Feed:
    fleet = orders.common.fleet
    return Feed(fleet.streams[orders.place].played, fleet_classes(fleet), orders.stream)
