"""Actor `inference/<stream>`, or `inference/gpu-<n>` where the streams of a GPU share a process."""

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import cv2

from ekya.core.events import Event
from ekya.core.units import BASE_VERSION, StreamId
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.nvml import list_gpus
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.multi_model import MultiModelPredictor, Predictors
from ekya.pipeline.base_model import base_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.golden_inference import GoldenInference
from ekya.pipeline.inference import serving
from ekya.pipeline.setup import crop_side
from ekya.planning.placement.homes import Processes
from ekya.results.storage.run_state import StreamRow
from ekya.runtime.actors.actor_kinds import ProcessConfig, Ready, StreamActorConfig
from ekya.runtime.actors.actor_messages import Mailbox
from ekya.runtime.actors.answering import AnsweringMark
from ekya.runtime.actors.frame_analysis import InferenceProcess
from ekya.runtime.actors.stream_inference import StreamInference
from ekya.runtime.shares.job_share import SharedUse, VersionedShare
from ekya.runtime.weights.model_batcher import ModelBatcher
from ekya.streams.ingest.feed import Feed
from ekya.system.files import write_bytes_atomic
from ekya.system.priority import INFERENCE_NICENESS, lower_priority

_LOG = logging.getLogger(__name__)

_SPARE_BYTES = 2 << 30
"""Free memory of the GPU for a spare process to start CUDA: some three times what that takes."""


class InferenceActor:
    """Inference of the streams of one process: each at its own pace, with shared model calls.

    Methods of one stream are called on ``streams`` (``ActorKind.stream_methods``). For a stream that is not
    in this process, since it failed or was set aside, they do nothing.

    Args:
        config: of the process.
        loaded: replies of actors that must be loaded first; Ray makes this actor once they have arrived.

    Attributes:
        streams: those that are in this process.
        shared: what they share; None before the first.
    """

    def __init__(self, config: ProcessConfig, *loaded: None) -> None:
        lower_priority(INFERENCE_NICENESS)
        cv2.setNumThreads(1)
        self._config, self._common = config, config.common
        # All cameras open concurrently.
        self._feeds = [_feed_of(one) for one in config.streams]
        self.streams: dict[StreamId, StreamInference] = {}
        self._mailbox = Mailbox()
        self._mark = AnsweringMark(config.answering)
        self.shared: InferenceProcess | None = None
        self._attaching = threading.Lock()
        self._savers: list[threading.Thread] = []

    def make_base_weights(self, stream: StreamId | None = None) -> tuple[bytes, None]:
        """Makes the base model of every stream; its files are written in the background.

        Given a stream, only its file is written. The second return value lets a caller wait for the model
        without fetching it.

        Raises:
            UserError: as ``base_model``.
        """
        model = base_model(self._common.fleet, self._common.seed)
        known = [one.id for one in self._common.fleet.streams]
        streams, weights = known if stream is None else [stream], to_bytes(model, half=True)
        saver = threading.Thread(target=self._save_base, args=(weights, streams), name="saver")
        saver.start()
        self._savers = [*(one for one in self._savers if one.is_alive()), saver]
        return to_bytes(model), None

    def load_streams(self, which: tuple[int, ...], *weights: bytes) -> dict[StreamId, Ready]:
        """Begins with the streams of its configuration: warms up their models and returns their settings.

        Args:
            which: index into ``weights`` for each stream; most begin with the same ones.
            weights: as safetensors bytes.
        """
        process, models = self._attached(), [from_bytes(one) for one in weights]
        for one, feed, served in zip(self._config.streams, self._feeds, which, strict=True):
            self.streams[one.stream] = StreamInference(one, feed, process, models[served])
        self._feeds = []
        return {stream: one.warm_up() for stream, one in self.streams.items()}

    def warm_up(self, weights: bytes) -> None:
        """Runs the slow first forward passes of a model, before any stream is here."""
        common, device, way = self._common, self._common.device, self._common.way
        if device == "cuda" and common.processes is Processes.GPU and _has_gpu_memory():
            # All cameras of the GPU would wait for CUDA to start.
            self._attached()
        elif device == "cuda":
            # A process that has begun to use a GPU occupies some of its memory.
            device, way = "cpu", PLAIN
        model = serving(from_bytes(weights), fleet_classes(common.fleet), Predictors(device, way))
        model.warm_up(crop_side(common.fleet), common.fleet.inference.resolutions)

    def process_id(self) -> int:
        """Returns the pid of this process."""
        return os.getpid()

    def start_run(self, started_monotonic_ns: int) -> None:
        """Starts all streams."""
        for one in self.streams.values():
            one.start_run(started_monotonic_ns)

    def rejoin_stream(self, config: StreamActorConfig, weights: bytes, started_monotonic_ns: int) -> None:
        """Makes a stream's inference here, in place of one that died with its process or by itself."""
        self.remove_stream(config.stream)
        made = StreamInference(config, _feed_of(config), self._attached(), from_bytes(weights))
        made.start_run(started_monotonic_ns)
        self.streams[config.stream] = made

    def admit_stream(self, config: StreamActorConfig, weights: bytes, started_monotonic_ns: int) -> Ready:
        """Makes the inference of a stream that is added to the run, and begins it; returns its settings."""
        self.remove_stream(config.stream)
        made = StreamInference(config, _feed_of(config), self._attached(), from_bytes(weights))
        ready = made.warm_up()
        if ready.died is None:
            made.start_run(started_monotonic_ns, from_now=True)
            self.streams[config.stream] = made
        else:
            made.stop_and_release()
        return ready

    def remove_stream(self, stream: StreamId) -> None:
        """Ends a stream's inference; the others' go on. Ends the process if its loop hangs."""
        one = self.streams.pop(stream, None)
        if one is not None and not one.stop_and_release():
            # A thread cannot be ended alone, and this one keeps a part of the share and memory of the GPU.
            _LOG.critical("%s: its inference hangs, so its process ends", stream)
            self._end_process_for(stream)

    def window_material(self, stream: StreamId, window: int, since_us: int | None) -> WindowMaterial:
        """Returns the frames of which a stream's labels in a window are made; see ``WindowCollector``."""
        return self.streams[stream].window_material(window, since_us)

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events of all streams; waits up to the timeout for the first.

        Ends the process if a stream's loop is lost: what it held cannot be known.
        """
        for stream, one in tuple(self.streams.items()):
            if one.is_lost:
                _LOG.critical(
                    "%s: its inference has ended without a report, or hangs; its process ends", stream
                )
                self._end_process_for(stream)
        return self._mailbox.drain(timeout_s)

    def _end_process_for(self, stream: StreamId) -> NoReturn:
        """Ends the process because of a stream, to which its death is charged."""
        self._mark.write_streams([stream])
        os._exit(1)

    def end_run(self, horizon_us: int) -> list[StreamRow]:
        """Stops all streams, answers the frames up to the end of the run, and returns frame counts.

        A stream that fails in this has no row.
        """
        streams = list(self.streams.values())
        for one in streams:
            one.stop_analysis()
        for saver in self._savers:
            saver.join()
        if self.shared is not None:
            self.shared.share.release()
        rows = []
        with ThreadPoolExecutor(max(len(streams), 1)) as pool:
            for ending in [pool.submit(one.finish_run, horizon_us) for one in streams]:
                try:
                    rows.append(ending.result())
                except Exception:
                    _LOG.exception("an inference could not end in order")
        return rows

    def _save_base(self, weights: bytes, streams: Sequence[StreamId]) -> None:
        for stream in streams:
            write_bytes_atomic(self._common.folder.model(stream, BASE_VERSION), weights)

    def _attached(self) -> InferenceProcess:
        """Returns the process's share and models, attached on first use: a spare process holds no share."""
        common = self._common
        with self._attaching:
            if self.shared is None:
                handle = common.shares.attach_job(
                    ShareJob(self._config.name, "inference", 0, self._config.gpu)
                )
                if common.device == "cuda":
                    # On a GPU a share of inference is the rate planned for its λ: no frame waits for it.
                    handle.release()
                models = MultiModelPredictor(common.device, common.way)
                classes = fleet_classes(common.fleet)
                batcher = ModelBatcher(handle.scope, classes, models, self._mark.answering)
                share, use = VersionedShare(handle), SharedUse(handle)
                scopes = DeviceScopes(common.device, handle.scope)
                golden = GoldenInference(common.fleet, scopes)
                self.shared = InferenceProcess(scopes, share, use, batcher, self._mailbox, golden)
            return self.shared


def _has_gpu_memory() -> bool:
    """Returns whether a spare process may use some of the only GPU that this process sees."""
    gpus = list_gpus().gpus
    return bool(gpus) and (gpus[0].memory_free_bytes or 0) >= _SPARE_BYTES


def _feed_of(config: StreamActorConfig) -> Feed:
    fleet = config.common.fleet
    os.environ.update(config.common.variables)
    stream = fleet.streams[config.place]
    return Feed(stream.played, fleet_classes(fleet), stream.id, stream.areas)
