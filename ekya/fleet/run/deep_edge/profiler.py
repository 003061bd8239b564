"""Profiler (Deep-Edge §IV.B.1): trains a real edge model under stress, beside inference.

A data point is measured on this machine: the state with the application and the stressors, the state with the
training too, the training time per sample, and the application's time per frame meanwhile. The time of an
update needs a parameter server; here it is 0, which means not measured. GPUs are not stressed: stress-ng
cannot do that.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby

import psutil

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.estimates import INFERENCE, EdgeWork, ProfilePoint, ProfileSetting
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.states import watched
from ekya.gpu.backends.backend import ShareBackend
from ekya.pipeline.speed_jobs import ProbeSpec, probes, rates_at

_STARTS_S = 0.5
"""Time in which stress-ng has started or has failed."""

_ENDS_S = 10.0
"""Time in which it ends on SIGTERM; afterwards it is killed."""

_FILLS_S = 60.0
"""Time in which it has allocated its memory."""

_TAKEN = 0.8
"""Part of the requested memory that must be resident before a measurement begins."""


@dataclass(frozen=True, slots=True)
class StressPoint:
    """Artificial load on a machine.

    Attributes:
        cpu: of all cores, as a part of one.
        mem: of the machine's memory, as a part of one.
    """

    cpu: float = 0.0
    mem: float = 0.0

    def __post_init__(self) -> None:
        for name, part in (("cpu", self.cpu), ("mem", self.mem)):
            if not 0 <= part < 1:
                raise UserError(f"a stress of {part:g} on {name} is none: give a part of 1, such as 0.5")


def stress_ng() -> str:
    """Returns the path of stress-ng.

    Raises:
        UserError: it is not installed.
    """
    path = shutil.which("stress-ng")
    if path is None:
        raise UserError(
            "stress-ng is not installed; install Debian's package of that name: apt-get install stress-ng"
        )
    return path


@contextmanager
def stressed(point: StressPoint) -> Iterator[None]:
    """Puts this machine under stress for the duration of the block.

    Raises:
        UserError: stress-ng is not installed, or cannot do it.
    """
    words = _words(point)
    if not words:
        yield
        return
    path = stress_ng()
    process = subprocess.Popen(
        [path, "--quiet", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        time.sleep(_STARTS_S)
        if process.poll() is not None:
            said = " ".join((process.stderr.read() if process.stderr else "").split())
            raise UserError(f"stress-ng ended at once ({said or process.returncode}); give it less to do")
        _await_memory(process.pid, point.mem)
        yield
    finally:
        # On SIGTERM the leader of the process group ends its stressors.
        process.terminate()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_memory(pid: int, part: float) -> None:
    """Waits until the stressors have allocated their memory.

    Raises:
        UserError: they do not within ``_FILLS_S``.
    """
    until_s, wanted = time.monotonic() + _FILLS_S, _TAKEN * part * psutil.virtual_memory().total
    while _resident_bytes(pid) < wanted:
        if time.monotonic() > until_s:
            raise UserError(
                f"stress-ng does not get {part:.0%} of the memory in {_FILLS_S:g} s; ask for less"
            )
        time.sleep(0.1)


def _resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process and its descendants; 0 for one that has ended."""
    resident = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                resident += one.memory_info().rss
    return resident


def _words(point: StressPoint) -> list[str]:
    words = []
    if point.cpu > 0:
        words += ["--cpu", "0", "--cpu-load", f"{round(100 * point.cpu)}"]
    if point.mem > 0:
        words += [
            "--vm",
            "1",
            "--vm-bytes",
            f"{round(point.mem * psutil.virtual_memory().total)}",
            "--vm-keep",
            "--vm-populate",
            "--vm-hang",
            "0",
        ]
    return words


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """Data points to measure on this machine.

    Attributes:
        work: kind of the machine, and the edge model.
        seconds: of measuring each state and each rate.
        batches: b_i, each at every stress point.
        shares_milli: of the training, each at every stress point.
        points: of stress.
    """

    work: EdgeWork
    seconds: float = 3.0
    batches: tuple[int, ...] = (4, 8, 16, 32)
    shares_milli: tuple[int, ...] = (FULL_GPU_MILLI,)
    points: tuple[StressPoint, ...] = (StressPoint(),)

    def tried(self) -> tuple[ProfileSetting, ...]:
        """Returns the conditions of each data point, in the order of measurement."""
        return tuple(
            ProfileSetting(self.work, stress.cpu, stress.mem, batch, share)
            for stress in self.points
            for batch in self.batches
            for share in self.shares_milli
        )


def profiled(
    run: ProfileRun, backend: ShareBackend, done: Collection[ProfileSetting] = ()
) -> Iterator[tuple[ProfileSetting, ProfilePoint]]:
    """Measures one data point after the other, and yields each with its conditions.

    Args:
        run: points to measure.
        backend: opened; holds the training to its share. Its device trains.
        done: points to skip.

    Raises:
        UserError: stress-ng is missing, or a process cannot begin.
    """
    left = [tried for tried in run.tried() if tried not in done]
    for (cpu, mem, batch), together in groupby(left, lambda tried: (tried.cpu, tried.mem, tried.batch)):
        yield from _at(run, backend, StressPoint(cpu, mem), batch, list(together))


def _at(
    run: ProfileRun, backend: ShareBackend, stress: StressPoint, batch: int, shares: Sequence[ProfileSetting]
) -> Iterator[tuple[ProfileSetting, ProfilePoint]]:
    work = run.work
    config = RetrainConfig(
        epochs=1, batch_size=batch, head_width=0, trainable_blocks=work.trainable_blocks, data_fraction=1.0
    )
    spec = ProbeSpec(work.architecture, work.side, config, backend.probe_machine().device, run.seconds)
    with stressed(stress), probes(backend, spec, ["inference"]) as (app,):
        with watched() as watch:
            rates_at([(app, FULL_GPU_MILLI)])
        before = watch.state()
        with probes(backend, spec, ["training"]) as (training,):
            for tried in shares:
                with watched() as watch:
                    trained, served = rates_at([(training, tried.share_milli), (app, FULL_GPU_MILLI)])
                yield (
                    tried,
                    ProfilePoint(
                        work.kind,
                        before,
                        batch,
                        (batch,),
                        NodeState(),
                        tried.share_milli,
                        compute_s=1 / trained.images_per_s,
                        update_s=0.0,
                        after=watch.state(),
                        app=INFERENCE,
                        exec_s=served.p95_ms / 1000,
                    ),
                )
