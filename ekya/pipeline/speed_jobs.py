"""Jobs whose speed is measured: training or inference at a share.

Each job is in a separate process, as in a run.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Role, ShareBackend, ShareHandle, ShareJob
from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import Predictors
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.labelled import Examples, LabelledCrops
from ekya.models.training.trainer import Compute, Retraining, RetrainingData

Kind = Literal["training", "inference"]
KINDS: tuple[Kind, Kind] = ("training", "inference")

_SETTLE_S = 0.3
"""Settling time after a change of share, not counted: a job may catch up on what it missed before."""

_LEAST_BATCHES = 4

LEAST_USED = 0.9
"""A job that used less than this part of its share was slowed down by other programs."""

_CROPS, _FRAMES, _CLASSES = 96, 16, tuple("abcdef")
_ANSWER_S, _NOTHING = 120.0, object()


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Configuration of a measurement.

    Attributes:
        architecture, side: the edge model, and its crops or frames in pixels.
        config: γ of the training.
        device: torch's name.
        seconds: minimum duration of each measurement.
    """

    architecture: str
    side: int
    config: RetrainConfig
    device: str
    seconds: float


class _EnoughError(Exception):
    """The measurement is over; unwinds the work."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Work to repeat, and the mean number of images in one of its batches."""

    do: Callable[[], object]
    batch_images: float


class _Counter:
    """Times batches in the handle's scope, from when they ask for the share until they end."""

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._took_s: list[float] = []
        self._ends_s: list[float] = []
        self._until_s: float | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        began_s = time.monotonic()
        with self._handle.scope():
            yield
        ended_s = time.monotonic()
        self._took_s.append(ended_s - began_s)
        self._ends_s.append(ended_s)
        over = self._until_s is not None and ended_s >= self._until_s
        if over and len(self._ends_s) > _LEAST_BATCHES:
            raise _EnoughError

    def rate(self, work: _Work, seconds: float) -> "Rate":
        """Measures the rate of endlessly repeated work."""
        for lasts_s in (_SETTLE_S, seconds):
            self._handle.measured()
            self._took_s, self._ends_s = [], []
            self._until_s = time.monotonic() + lasts_s
            try:
                while True:
                    work.do()
            except _EnoughError:
                pass
        self._until_s = None
        batches_per_s = (len(self._ends_s) - 1) / (self._ends_s[-1] - self._ends_s[0])
        p50_s, p95_s, p99_s = np.percentile(self._took_s, (50, 95, 99)).tolist()
        used_milli = self._handle.measured().share_milli
        return Rate(
            batches_per_s,
            used_milli,
            images_per_s=batches_per_s * work.batch_images,
            p50_ms=1e3 * p50_s,
            p99_ms=1e3 * p99_s,
            p95_ms=1e3 * p95_s,
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """Measured speed of a job.

    Attributes:
        batches_per_s: that ended.
        used_milli: the share that it used.
        granted_milli: the share that it had.
        images_per_s: crops that were trained on, or classified.
        p50_ms, p95_ms, p99_ms: from when a batch asked for the share until it ended; for training, until
            the host continued.
    """

    batches_per_s: float
    used_milli: int
    granted_milli: int = FULL_GPU_MILLI
    images_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p95_ms: float = 0.0

    def require_undisturbed(self) -> None:
        """Checks that the job used its share; it has nothing else to wait for than other programs.

        Raises:
            UserError: it used less.
        """
        if self.used_milli < LEAST_USED * self.granted_milli:
            raise UserError(
                f"this device is busy: a job with {self.granted_milli / 10:g}% of a GPU got "
                f"{self.used_milli / 10:g}%; end what else runs and measure again."
            )


def _probe(backend: ShareBackend, spec: ProbeSpec, kind: Kind, job: ShareJob, asked: Connection) -> None:
    """Runs a job's process until the parent ends it, and sends an error to the parent if it fails."""
    torch.set_num_threads(1)
    try:
        _measure(backend, spec, kind, job, asked)
    except UserError as error:
        asked.send(error)
    except Exception as error:
        asked.send(RuntimeError(f"a process for {kind} has died ({type(error).__name__}: {error})"))
        raise


def _measure(backend: ShareBackend, spec: ProbeSpec, kind: Kind, job: ShareJob, asked: Connection) -> None:
    """Measures at each requested share until None is requested."""
    handle = backend.attach_job(job)
    counter = _Counter(handle)
    work = _training(spec, counter) if kind == "training" else _inference(spec, counter)
    asked.send(None)
    while (share_milli := asked.recv()) is not None:
        effective = handle.resize(share_milli).share_milli
        rate = counter.rate(work, spec.seconds) if share_milli else Rate(0.0, 0)
        asked.send(replace(rate, granted_milli=effective))
    handle.release()


def _training(spec: ProbeSpec, counter: _Counter) -> _Work:
    """Returns the work of an epoch, which includes a validation batch."""
    labelled = _labelled(spec)
    rows = np.arange(len(labelled))
    retraining = Retraining(
        build_edge_model(_CLASSES, 0, 0, spec.architecture),
        spec.config,
        RetrainingData(labelled, labelled.select_rows(rows[:: len(_CLASSES)]), _CLASSES, seed=0),
        Compute(device=spec.device, scope=counter.scope),
    )
    retraining.prepare_training()
    batches = steps_in_epoch(len(rows), spec.config.batch_size) + 1
    return _Work(retraining.run_epoch, len(rows) / batches)


def _inference(spec: ProbeSpec, counter: _Counter) -> _Work:
    """Returns the work of analysing one frame: its objects, or all of it."""
    predictor = Predictors(spec.device).predictor_for(build_edge_model(_CLASSES, 0, 0, spec.architecture))
    images = random_images(1 if _detects(spec) else round(TYPICAL_OBJECTS), spec.side)

    def analyse() -> None:
        with counter.scope():
            predictor.predict(images, spec.side)

    return _Work(analyse, len(images))


def _labelled(spec: ProbeSpec) -> Examples:
    if _detects(spec):
        return random_frames(_FRAMES, spec.side, _CLASSES)
    rows = np.arange(_CROPS)
    return LabelledCrops(random_images(_CROPS, spec.side), rows % len(_CLASSES), rows, rows)


def _detects(spec: ProbeSpec) -> bool:
    return task_of(spec.architecture) is Task.DETECT


@contextmanager
def probes(
    backend: ShareBackend, spec: ProbeSpec, kinds: Sequence[Kind], *, all_held: bool = False
) -> Iterator[list[Connection]]:
    """Starts a process for each kind, ready to measure; nothing runs in it yet.

    Args:
        backend: opened.
        spec: configuration of the measurement.
        kinds: of the processes.
        all_held: also hold inference to its share where the backend does this to training alone.

    Raises:
        UserError: a process cannot begin.
        RuntimeError: a process has died, or hangs.
    """
    # Not by fork: CUDA cannot be used in a child of a process that has started it.
    context: Any = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes, processes = [], []
        for number, kind in enumerate(kinds):
            role: Role = "retraining" if all_held or kind == "training" else "inference"
            job = ShareJob(f"speed/{number}", role, FULL_GPU_MILLI // len(kinds))
            ours, theirs = context.Pipe()
            process = context.Process(target=_probe, args=(backend, spec, kind, job, theirs), daemon=True)
            with _environment(backend.actor_env(job)):
                process.start()
            # Callbacks run in reverse order: the process is terminated, then waited for.
            stack.callback(process.join, 10)
            stack.callback(process.terminate)
            # While this process held the child's end, the child's death would not end the pipe.
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _answer(pipe)
        yield pipes
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join(10)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a child process, which it needs before CUDA starts in it."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _answer(pipe: Connection) -> Any:
    """Returns the reply of a process.

    Raises:
        UserError: sent by the process.
        RuntimeError: sent by the process, or it died or timed out.
    """
    try:
        answer = pipe.recv() if pipe.poll(_ANSWER_S) else _NOTHING
    except EOFError:
        answer = _NOTHING
    if answer is _NOTHING:
        raise RuntimeError("a process that measured speeds was killed, or hangs")
    if isinstance(answer, UserError | RuntimeError):
        raise answer
    return answer


def rates_at(shares: Sequence[tuple[Connection, int]]) -> list[Rate]:
    """Measures processes concurrently, each at its share in thousandths; at 0 a process idles.

    Raises:
        RuntimeError: a process has died, or hangs.
    """
    for pipe, share_milli in shares:
        with suppress(OSError):  # The error that it sent before it died is read below.
            pipe.send(share_milli)
    return [_answer(pipe) for pipe, _ in shares]


_GAP_US = 1_000_000


def random_images(count: int, side: int) -> NDArray[np.uint8]:
    """Returns (count, side, side, 3) uint8 noise."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def random_frames(count: int, side: int, names: tuple[str, ...]) -> LabelledFrames:
    """Returns frames of noise, each with a typical number of labelled objects, a second apart."""
    rng = np.random.default_rng(1)
    each = round(TYPICAL_OBJECTS)
    low = rng.uniform(0.0, 0.7, (count, each, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.3, low.shape)], axis=2).astype(np.float32)
    classes = rng.integers(0, len(names), (count, each))
    none = np.zeros((0, 4), np.float32)
    objects = tuple(FrameObjects(*of, none) for of in zip(boxes, classes, strict=True))
    order = np.arange(count, dtype=np.int64)
    return LabelledFrames(random_images(count, side), objects, names, order, order * _GAP_US)
