"""How fast training and inference really are at a share: measured in processes of their own, as jobs run."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.core.speed import KindSpeeds, ModelSpeeds
from ekya.core.units import FULL_GPU_MILLI
from ekya.errors import UserError
from ekya.gpu.protocol import Role, ShareBackend, ShareHandle, ShareJob
from ekya.learning.edge import build_edge_model
from ekya.learning.labelled import LabelledCrops
from ekya.learning.predictor import Predictor
from ekya.learning.trainer import Retraining
from ekya.profiling.speed import curve_through, throughput
from ekya.workers.preparation import TYPICAL_OBJECTS

Kind = Literal["training", "inference"]
KINDS: tuple[Kind, Kind] = ("training", "inference")

SHARES_MILLI = (100, 200, 300, 400, 500, 650, 800, 1000)
TOGETHER = (2, 4)

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


class _Counter:
    """Batches, each in the handle's scope, and when they ended."""

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self.ends_s: list[float] = []
        self.until_s: float | None = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        with self._handle.scope():
            yield
        self.ends_s.append(time.monotonic())
        over = self.until_s is not None and self.ends_s[-1] >= self.until_s
        if over and len(self.ends_s) > _LEAST_BATCHES:
            raise _EnoughError

    def rate(self, work: Callable[[], object], seconds: float) -> "_Rate":
        """Of work that goes on for ever."""
        for lasts_s in (_SETTLE_S, seconds):
            self._handle.measured()
            self.ends_s, self.until_s = [], time.monotonic() + lasts_s
            try:
                while True:
                    work()
            except _EnoughError:
                pass
        self.until_s = None
        passed_s = self.ends_s[-1] - self.ends_s[0]
        return _Rate((len(self.ends_s) - 1) / passed_s, self._handle.measured().share_milli)


@dataclass(frozen=True, slots=True)
class _Rate:
    """Batches a second, at the share that was granted, and the share that was really used."""

    batches_per_s: float
    used_milli: int
    granted_milli: int = FULL_GPU_MILLI

    def require_undisturbed(self) -> None:
        """Raises UserError where others kept the job from its share: it has nothing to wait for but that."""
        if self.used_milli < LEAST_USED * self.granted_milli:
            raise UserError(
                f"this device is busy: a job with {self.granted_milli / 10:g}% of a GPU got "
                f"{self.used_milli / 10:g}%; end what else runs and measure again."
            )


def _probe(backend: ShareBackend, spec: ProbeSpec, kind: Kind, job: ShareJob, asked: Connection) -> None:
    """A job's process: measures at the shares that it is asked for until it is told None."""
    torch.set_num_threads(1)
    try:
        handle = backend.attach(job)
    except UserError as error:
        asked.send(error)
        return
    counter = _Counter(handle)
    work = _training(spec, counter) if kind == "training" else _inference(spec, counter)
    asked.send(None)
    while (share_milli := asked.recv()) is not None:
        effective = handle.resize(share_milli).share_milli
        asked.send(replace(counter.rate(work, spec.seconds), granted_milli=effective))
    handle.release()


def _training(spec: ProbeSpec, counter: _Counter) -> Callable[[], object]:
    """Epochs for ever."""
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
    return retraining.run_epoch


def _inference(spec: ProbeSpec, counter: _Counter) -> Callable[[], object]:
    """The objects of one frame."""
    predictor = Predictor(build_edge_model(_CLASSES, 0, 0, spec.architecture), spec.device)
    crops = _crops(spec)[: round(TYPICAL_OBJECTS)]

    def look() -> None:
        with counter.scope():
            predictor.predict(crops, spec.side)

    return look


def _crops(spec: ProbeSpec) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (_CROPS, spec.side, spec.side, 3), np.uint8)


@contextmanager
def _probes(backend: ShareBackend, spec: ProbeSpec, kind: Kind, count: int) -> Iterator[list[Connection]]:
    """So many processes, ready to be asked."""
    context: Any = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes, processes = [], []
        for number in range(count):
            role: Role = "retraining" if kind == "training" else "inference"
            job = ShareJob(f"speed/{number}", role, FULL_GPU_MILLI // count)
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
    """What a probe says. Raises UserError as it does, and RuntimeError where it died or says nothing."""
    try:
        answer = pipe.recv() if pipe.poll(_ANSWER_S) else _NOTHING
    except EOFError:
        answer = _NOTHING
    if answer is _NOTHING:
        raise RuntimeError("a process that measured speeds has died or hangs; its own message says why")
    if isinstance(answer, UserError):
        raise answer
    return answer


def measure_speeds(
    backend: ShareBackend,
    spec: ProbeSpec,
    shares_milli: Sequence[int] = SHARES_MILLI,
    together: Sequence[int] = TOGETHER,
    told: Callable[[], None] = lambda: None,
) -> ModelSpeeds:
    """Measures training and inference, alone at each share, and then several at equal parts of one GPU.

    Args:
        backend: opened.
        spec: what is tried.
        shares_milli: the last is 1000. Where a backend grants less than asked, that counts.
        together: numbers of jobs.
        told: is called after each measurement; there are 2 · (shares + numbers).

    Raises:
        UserError: the device is busy with something else, or a job could not begin.
    """
    speeds = []
    for kind in KINDS:
        alone: dict[int, float] = {}
        with _probes(backend, spec, kind, 1) as pipes:
            for share_milli in shares_milli:
                for rate in _rates(pipes, share_milli):
                    alone[rate.granted_milli] = rate.batches_per_s
                told()
        # Where a backend never grants a whole GPU, full speed is what a job reaches at most.
        full = alone.setdefault(FULL_GPU_MILLI, max(alone.values()))
        beside = []
        for jobs in together:
            with _probes(backend, spec, kind, jobs) as pipes:
                rates = tuple(rate.batches_per_s for rate in _rates(pipes, FULL_GPU_MILLI // jobs))
            beside.append(throughput(rates, full))
            told()
        speeds.append(KindSpeeds(curve_through(alone), tuple(beside)))
    training, inference = speeds
    return ModelSpeeds(training, inference)


def _rates(pipes: Sequence[Connection], share_milli: int) -> list[_Rate]:
    """Of each process at this share, all at the same time."""
    for pipe in pipes:
        pipe.send(share_milli)
    rates: list[_Rate] = [_answer(pipe) for pipe in pipes]
    for rate in rates:
        rate.require_undisturbed()
    return rates
