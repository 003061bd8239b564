"""Jobs whose speed is measured: training or inference at a share, in a process of its own as in a run."""

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
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.units import FULL_GPU_MILLI
from ekya.errors import UserError
from ekya.gpu.protocol import Role, ShareBackend, ShareHandle, ShareJob
from ekya.learning.edge import build_edge_model
from ekya.learning.epochs import steps_in_epoch
from ekya.learning.labelled import LabelledCrops
from ekya.learning.predictor import Predictor
from ekya.learning.trainer import Retraining

Kind = Literal["training", "inference"]
KINDS: tuple[Kind, Kind] = ("training", "inference")

_SETTLE_S = 0.3
"""After a change of share, before anything counts: a job may make good what it missed before."""

_LEAST_BATCHES = 4

LEAST_USED = 0.9
"""A job that could use less than this part of its share was held up by something else."""

_CROPS, _CLASSES = 96, tuple("abcdef")
_ANSWER_S, _NOTHING = 120.0, object()


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """What is tried.

    Attributes:
        architecture, side: the edge model, and its crops in pixels.
        config: γ of the training.
        device: torch's name of where.
        seconds: for which each rate is measured, at least.
    """

    architecture: str
    side: int
    config: RetrainConfig
    device: str
    seconds: float


class _EnoughError(Exception):
    """The time is up; unwinds a training from wherever it is."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Something to do again and again, and how many images one of its batches is, on average."""

    do: Callable[[], object]
    batch_images: float


class _Counter:
    """Batches, each in the handle's scope, from when they asked for their turn until they ended."""

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
        """Of work that goes on for ever."""
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
    """How fast a job was.

    Attributes:
        batches_per_s: that ended.
        used_milli: the share that it really used.
        granted_milli: the share that it had.
        images_per_s: crops that were trained on, or classified.
        p50_ms, p95_ms, p99_ms: from when a batch asked for its turn until it ended; for training, until the
            host went on.
    """

    batches_per_s: float
    used_milli: int
    granted_milli: int = FULL_GPU_MILLI
    images_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p95_ms: float = 0.0

    def require_undisturbed(self) -> None:
        """Raises UserError where others kept the job from its share: it has nothing to wait for but that."""
        if self.used_milli < LEAST_USED * self.granted_milli:
            raise UserError(
                f"this device is busy: a job with {self.granted_milli / 10:g}% of a GPU got "
                f"{self.used_milli / 10:g}%; end what else runs and measure again."
            )


def _probe(backend: ShareBackend, spec: ProbeSpec, kind: Kind, job: ShareJob, asked: Connection) -> None:
    """A job's process: works until it is told to end, or says why it cannot."""
    torch.set_num_threads(1)
    try:
        _measure(backend, spec, kind, job, asked)
    except UserError as error:
        asked.send(error)
    except Exception as error:
        asked.send(RuntimeError(f"a process for {kind} has died ({type(error).__name__}: {error})"))
        raise


def _measure(backend: ShareBackend, spec: ProbeSpec, kind: Kind, job: ShareJob, asked: Connection) -> None:
    """Measures at the shares that it is asked for until it is told None."""
    handle = backend.attach(job)
    counter = _Counter(handle)
    work = _training(spec, counter) if kind == "training" else _inference(spec, counter)
    asked.send(None)
    while (share_milli := asked.recv()) is not None:
        effective = handle.resize(share_milli).share_milli
        rate = counter.rate(work, spec.seconds) if share_milli else Rate(0.0, 0)
        asked.send(replace(rate, granted_milli=effective))
    handle.release()


def _training(spec: ProbeSpec, counter: _Counter) -> _Work:
    """Epochs, each with a batch that validates."""
    rows = np.arange(_CROPS)
    labelled = LabelledCrops(_crops(spec), rows % len(_CLASSES), rows, rows)
    retraining = Retraining(
        build_edge_model(_CLASSES, 0, 0, spec.architecture),
        spec.config,
        labelled,
        labelled.take(rows[:: len(_CLASSES)]),
        memory=None,
        classes=_CLASSES,
        seed=0,
        device=spec.device,
        scope=counter.scope,
    )
    retraining.prepare()
    batches = steps_in_epoch(_CROPS, spec.config.batch_size) + 1
    return _Work(retraining.run_epoch, _CROPS / batches)


def _inference(spec: ProbeSpec, counter: _Counter) -> _Work:
    """The objects of one frame."""
    predictor = Predictor(build_edge_model(_CLASSES, 0, 0, spec.architecture), spec.device)
    crops = _crops(spec)[: round(TYPICAL_OBJECTS)]

    def look() -> None:
        with counter.scope():
            predictor.predict(crops, spec.side)

    return _Work(look, len(crops))


def _crops(spec: ProbeSpec) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (_CROPS, spec.side, spec.side, 3), np.uint8)


@contextmanager
def probes(backend: ShareBackend, spec: ProbeSpec, kinds: Sequence[Kind]) -> Iterator[list[Connection]]:
    """A process for each of these, ready to be asked; none has done anything yet, and none rests.

    Raises:
        UserError: one of them cannot begin.
        RuntimeError: one of them has died, or hangs.
    """
    context: Any = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes, processes = [], []
        for number, kind in enumerate(kinds):
            role: Role = "retraining" if kind == "training" else "inference"
            job = ShareJob(f"speed/{number}", role, FULL_GPU_MILLI // len(kinds))
            ours, theirs = context.Pipe()
            process = context.Process(target=_probe, args=(backend, spec, kind, job, theirs), daemon=True)
            with _environment(backend.actor_env(job)):
                process.start()
            stack.callback(process.join, 10)
            stack.callback(process.terminate)
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
    """What a child inherits; set before CUDA starts in it."""
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
    """What a probe says. Raises the error that it says, and RuntimeError where it says nothing."""
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
    """Of each of these processes at its share in thousandths, all at the same time; at 0 it rests.

    Raises:
        RuntimeError: one of them has died, or hangs.
    """
    for pipe, share_milli in shares:
        with suppress(OSError):  # Its last words are still to be read.
            pipe.send(share_milli)
    return [_answer(pipe) for pipe, _ in shares]
