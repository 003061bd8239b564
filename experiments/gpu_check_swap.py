"""Checks of `make gpu-check`: hot swap of new weights from a trainer's process to inference."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import torch
from gpu_check_mps import seen_by_cuda
from gpu_check_report import Finding
from inference_ways import FRAME_SIDE, FRAMES, OBJECTS, SIDE, settled

from ekya.core.errors import UserError
from ekya.gpu.mps.service import find_mps, mps_service
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.forward import TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.multi_model import AnyPredictor, Predictors
from ekya.pipeline.speed_jobs import random_images

CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck")
BEFORE, COMING, CHECKING = "before", "coming", "checking"
"""Phases in which a batch is served."""

HAND_OVERS = 10
STALL_LIMIT_MS = 1.0

SERVE_LIMIT_MS = 1000.0
"""Limit for new weights to serve, from the trainer's first step on."""

SAME = 0.01
"""Accepted relative difference between answers of the same weights, prepared in different places."""

_MODELS = 2
_BATCHES_BEFORE = 20
_WAIT_S, _END_S, _LOOK_S = 20.0, 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of several hot swaps.

    Attributes:
        delays_ms: from the trainer's first step until the new weights serve.
        stalls_ms: from the end of the last batch of the old weights to the begin of the first of the new.
        batches_ms, meanwhile_ms: duration of batches before, and while weights are transferred.
        off: largest relative difference of answers from those of the same weights without a transfer.
        moved: smallest relative difference of answers that a swap caused.
        back: largest relative difference when the old weights serve again.
        processes: pid of the serving process, before and after.
        steps_s: duration of each step of the measurement.
    """

    delays_ms: tuple[float, ...]
    stalls_ms: tuple[float, ...]
    batches_ms: tuple[float, ...]
    meanwhile_ms: tuple[float, ...]
    off: float
    moved: float
    back: float
    processes: tuple[int, int]
    steps_s: Mapping[str, float] = field(default_factory=dict)


def swap() -> Iterator[Finding]:
    """Measures a classifier."""
    yield from _swap("resnet18")


def student() -> Iterator[Finding]:
    """Measures a detector."""
    yield from _swap(FASTESTDET)


def _swap(architecture: str) -> Iterator[Finding]:
    """Measures between two processes on one GPU, as clients of MPS if a daemon is available."""
    inventory = seen_by_cuda()
    with ExitStack() as stack:
        where = "two clients of MPS"
        try:
            daemons = mps_service(find_mps(inventory), inventory.gpus)
            os.environ.update(stack.enter_context(daemons).clients[0])
        except UserError as error:
            where = f"two processes without MPS ({error})"
        began_s = time.monotonic()
        measured = in_a_process("cuda", architecture, HAND_OVERS)
        # What is left is the start and the end of the serving process.
        start_s = time.monotonic() - began_s - sum(measured.steps_s.values())
        steps_s = {"start and end": start_s, **measured.steps_s}
        yield from findings_of(where, architecture, replace(measured, steps_s=steps_s))


def in_a_process(device: str, architecture: str, times: int) -> Measured:
    """Measures in a separate process, which is the parent of the trainer's process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measure, device, architecture, times).result()


def findings_of(where: str, architecture: str, measured: Measured) -> Iterator[Finding]:
    """Yields the findings about pauses, delays and answers."""
    delay_ms, longest_ms = _middle_and_most(measured.delays_ms)
    stall_ms, longest_stall_ms = _middle_and_most(measured.stalls_ms)
    batch_ms, _ = _middle_and_most(measured.batches_ms)
    meanwhile_ms, slowest_ms = _middle_and_most(measured.meanwhile_ms)
    yield Finding(
        f"new weights of a {architecture}, between {where}",
        f"serve within {SERVE_LIMIT_MS:g} ms; no pause between two batches of over {STALL_LIMIT_MS:g} ms at "
        "the median",
        f"serve after {delay_ms:.1f} ms (most {longest_ms:.1f}); pause {stall_ms:.3f} ms (most "
        f"{longest_stall_ms:.3f}); a batch takes {batch_ms:.2f} ms, and while they come "
        f"{meanwhile_ms:.2f} ms (most {slowest_ms:.2f})",
        stall_ms <= STALL_LIMIT_MS and longest_ms <= SERVE_LIMIT_MS,
        {
            "delays_ms": measured.delays_ms,
            "stalls_ms": measured.stalls_ms,
            "batch_ms": batch_ms,
            "meanwhile_ms": meanwhile_ms,
            "meanwhile_most_ms": slowest_ms,
            "steps_s": measured.steps_s,
        },
    )
    before, after = measured.processes
    yield Finding(
        f"answers of a {architecture} after a swap, and after going back",
        f"those of the weights that serve, within {SAME:g}, in the same process",
        f"within {measured.off:.1e} of the same weights' own, {measured.moved:.2f} from the ones before, "
        f"within {measured.back:.1e} after going back; process {before}, then {after}",
        measured.off <= SAME < measured.moved and measured.back == 0.0 and before == after,
        {"off": measured.off, "moved": measured.moved, "back": measured.back},
    )


def measure(device: str, architecture: str, times: int) -> Measured:
    """Serves in this process without a break, while another process hands over weights ``times`` times."""
    # As workers do: two processes with a thread for each core wait for each other's in every layer.
    torch.set_num_threads(1)
    steps = _Steps()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    trainer = spawn.Process(target=_train, args=(there, architecture), daemon=True)
    trainer.start()
    models = [_model(architecture, seed) for seed in range(_MODELS)]
    steps.end("models")
    expected = [_answers_of(_predictor(model, device)) for model in models]
    serving = _Serving(device, models[0])
    pid, off, moved, back = os.getpid(), 0.0, np.inf, 0.0
    try:
        steps.end("first answers")
        _next(here, trainer)
        steps.end("wait for the trainer")
        serving.start()
        serving.wait_for_batches(_BATCHES_BEFORE)
        old, was = serving.predictor, _answers_of(serving.predictor)
        for turn in range(1, times + 1):
            serving.expect()
            began_ns = time.monotonic_ns()
            here.send(turn)
            ready = _taken(_next(here, trainer), device)
            here.send("taken")
            serving.swap(ready, began_ns)
            is_now = _answers_of(serving.predictor)
            off = max(off, _apart(is_now, expected[turn % _MODELS]))
            moved = min(moved, _apart(is_now, was))
            back = max(back, _apart(_answers_of(old), was))
            old, was = serving.predictor, is_now
        steps.end("swaps")
    finally:
        serving.stop()
        here.close()
        trainer.join(_END_S)
    return Measured(
        tuple(serving.delays_ms),
        tuple(serving.stalls_ms),
        tuple(serving.batches_ms[BEFORE]),
        tuple(serving.batches_ms[COMING]),
        off,
        float(moved),
        back,
        (pid, os.getpid()),
        steps.took_s,
    )


class _Steps:
    """Durations of consecutive steps."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}
        self._began_s = time.monotonic()

    def end(self, name: str) -> None:
        """Ends the current step, which has this name, and begins the next."""
        now_s = time.monotonic()
        self.took_s[name], self._began_s = now_s - self._began_s, now_s


class _Serving:
    """Serving loop of an inference actor, without a camera: batch after batch, with hot swaps between two."""

    def __init__(self, device: str, model: EdgeModel) -> None:
        self.predictor = _predictor(model, device)
        self._images = _images_for(model)
        self.delays_ms: list[float] = []
        self.stalls_ms: list[float] = []
        self.batches_ms: dict[str, list[float]] = {BEFORE: [], COMING: [], CHECKING: []}
        self._lock = threading.Condition()
        self._next: tuple[AnyPredictor, int] | None = None
        self._phase, self._stopped = BEFORE, False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stops serving."""
        with self._lock:
            self._stopped = True
        if self._thread.is_alive():
            self._thread.join()

    def wait_for_batches(self, count: int) -> None:
        """Waits until this many batches were served."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.batches_ms[self._phase]) >= count, _WAIT_S)

    def expect(self) -> None:
        """Marks the following batches as served while weights are transferred."""
        with self._lock:
            self._phase = COMING

    def swap(self, predictor: AnyPredictor, began_ns: int) -> None:
        """Serves another predictor from the next batch on; returns when it has served one."""
        with self._lock:
            self._next, swaps = (predictor, began_ns), len(self.delays_ms)
            assert self._lock.wait_for(lambda: len(self.delays_ms) > swaps, _WAIT_S)
            self._phase = CHECKING

    def _run(self) -> None:
        ended_ns = time.monotonic_ns()
        while True:
            with self._lock:
                if self._stopped:
                    return
                swap, self._next = self._next, None
                if swap is not None:
                    self.predictor = swap[0]
            began_ns = time.monotonic_ns()
            self.predictor.predict(self._images, self._images.shape[1])
            now_ns = time.monotonic_ns()
            with self._lock:
                if swap is not None:
                    self.stalls_ms.append((began_ns - ended_ns) / 1e6)
                    self.delays_ms.append((began_ns - swap[1]) / 1e6)
                self.batches_ms[self._phase].append((now_ns - began_ns) / 1e6)
                self._lock.notify_all()
            ended_ns = now_ns


def _taken(name: str, device: str) -> AnyPredictor:
    """Receives weights from a block of shared memory and prepares them, as inference does."""
    # As with Ray's object store: shared memory, and a copy of it for each reader.
    memory = SharedMemory(name)
    try:
        return _predictor(from_bytes(bytes(memory.buf)), device)
    finally:
        memory.close()


def _train(there: Connection, architecture: str) -> None:
    """Trainer's process: hands over weights on each order, and keeps them until they were taken."""
    torch.set_num_threads(1)
    models = [_model(architecture, seed) for seed in range(_MODELS)]
    there.send("ready")
    while (turn := _order(there)) is not None:
        with _stored(models[turn % _MODELS]) as name:
            there.send(name)
            _order(there)


@contextmanager
def _stored(model: EdgeModel) -> Iterator[str]:
    data = to_bytes(model)
    memory = SharedMemory(create=True, size=len(data))
    try:
        memory.buf[: len(data)] = data
        yield memory.name
    finally:
        memory.close()
        memory.unlink()


def _order(pipe: Connection) -> Any:
    """Returns the next order, or None at the end of the pipe."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def _next(pipe: Connection, trainer: BaseProcess) -> Any:
    until_s = time.monotonic() + _WAIT_S
    while not pipe.poll(_LOOK_S):
        if not trainer.is_alive():
            raise RuntimeError(f"the trainer's process has ended with {trainer.exitcode}")
        if time.monotonic() > until_s:
            raise TimeoutError(f"the trainer's process said nothing for {_WAIT_S:g} s")
    return pipe.recv()


def _model(architecture: str, seed: int) -> EdgeModel:
    return settled(build_edge_model(CLASSES, 0, seed, architecture), seed)


def _predictor(model: EdgeModel, device: str) -> AnyPredictor:
    """Returns what runs a model as inference does; a detector in torch, whatever the device."""
    return Predictors(device, ForwardWay(engine=TORCH)).predictor_for(model)


def _images_for(model: EdgeModel) -> np.ndarray:
    """Returns what a model analyses of one frame: the crops of its objects, or all of it."""
    if model.detector is None:
        return random_images(FRAMES[0] * OBJECTS, SIDE)
    return random_images(FRAMES[0], FRAME_SIDE)


def _answers_of(predictor: AnyPredictor) -> np.ndarray:
    """Returns answers for a frame: (N, 1) confidences, or (A, 5) boxes and scores."""
    images = _images_for(predictor.source)
    if isinstance(predictor, DetectorPredictor):
        found = predictor.predict(images, images.shape[1])
        return np.column_stack((found.boxes[0], found.scores[0]))
    _, sure = predictor.predict(images, images.shape[1])
    return sure[:, None]


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _middle_and_most(values: Sequence[float]) -> tuple[float, float]:
    return float(np.median(values)), float(max(values))
