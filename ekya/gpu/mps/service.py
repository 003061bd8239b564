"""MPS for a whole run: a separate daemon for each GPU.

``find_mps`` finds what is available and starts nothing, ``mps_service`` starts and ends the daemons, and
``MpsEnvironment`` is sent to the jobs, whose processes are clients.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from ekya.core.errors import UserError
from ekya.gpu.mps.control import CONTROL, PIPE_VARIABLE, VISIBLE_VARIABLE, MpsControl, MpsError, find_control
from ekya.gpu.mps.daemon import DaemonLimits, end_daemon, restart_daemon, start_daemon
from ekya.gpu.mps.folder import DaemonFolder, abandoned, choose_base, new_folder, temporary_folders
from ekya.gpu.nvml import Gpu, GpuInventory
from ekya.system.processes import still_runs

_LOG = logging.getLogger(__name__)

_POLL_S = 0.5
"""Interval of checks that a daemon is alive; jobs wait for a restart."""


@dataclass(frozen=True, slots=True)
class MpsFound:
    """Availability of MPS on this machine.

    Attributes:
        usable: whether a run can use MPS.
        why: what was found, or what is missing and how to get it, as a clause.
        program: the control program.
    """

    usable: bool
    why: str
    program: Path | None = None


@dataclass(frozen=True, slots=True)
class MpsEnvironment:
    """MPS settings for the processes of jobs; a plain value.

    Attributes:
        program: the control program.
        clients: environment that makes a process a client, for each GPU of the run.
    """

    program: Path
    clients: tuple[Mapping[str, str], ...]

    @property
    def own_daemon(self) -> MpsControl:
        """Control program for the daemon of this process, which has the environment of a client."""
        return MpsControl(self.program, Path(os.environ[PIPE_VARIABLE]))


def find_mps(inventory: GpuInventory) -> MpsFound:
    """Finds the MPS that a run can use. Starts nothing and makes no CUDA context."""
    if not inventory.gpus:
        return MpsFound(False, inventory.why)
    split = next((gpu for gpu in inventory.gpus if gpu.mig), None)
    if split is not None:
        why = f"GPU {split.index} is split by MIG, where a daemon would serve a part of it only"
        return MpsFound(False, why)
    program = find_control()
    if program is None:
        why = f"{CONTROL} is neither on the PATH nor where drivers put it (it comes with the NVIDIA driver)"
        return MpsFound(False, why)
    try:
        choose_base(temporary_folders())
    except UserError as error:
        return MpsFound(False, str(error))
    return MpsFound(True, f"{program} can serve each GPU", program)


FindMps = Callable[[GpuInventory], MpsFound]
"""Type of ``find_mps`` and of the tests' replacements."""


@contextmanager
def mps_service(
    found: MpsFound, gpus: Sequence[Gpu], limits: DaemonLimits | None = None
) -> Iterator[MpsEnvironment]:
    """Provides a daemon for each of these GPUs until the end of the block.

    The daemons are started again if they die or a client's fault stops them, and ended with the block or with
    this process. Daemons left by a dead owner and keeper are ended first.

    Raises:
        UserError: MPS cannot be used, or a daemon does not start or reply.
    """
    if not found.usable or found.program is None:
        raise UserError(f"MPS cannot be used here: {found.why}")
    limits = limits or DaemonLimits()
    end_abandoned(found.program, limits)
    with ExitStack() as stack:
        pipes = [stack.enter_context(_run_daemon(found.program, gpu, limits)) for gpu in gpus]
        clients = (
            {PIPE_VARIABLE: str(pipe), VISIBLE_VARIABLE: gpu.uuid}
            for gpu, pipe in zip(gpus, pipes, strict=True)
        )
        yield MpsEnvironment(found.program, tuple(clients))


def end_abandoned(program: Path, limits: DaemonLimits) -> None:
    """Ends daemons of the current user whose owner and keeper have both died, and removes their folders."""
    for base in temporary_folders():
        with abandoned(base) as folders:
            for folder in folders:
                _LOG.warning("%s was left behind by a run that died; it is tidied up", folder.root)
                _end(MpsControl(program, folder.pipe, limits.answer_s), folder, limits)


def _end(control: MpsControl, folder: DaemonFolder, limits: DaemonLimits) -> None:
    try:
        end_daemon(control, folder, limits)
    except MpsError as error:
        _LOG.error("%s", error)


@contextmanager
def _run_daemon(program: Path, gpu: Gpu, limits: DaemonLimits) -> Iterator[Path]:
    """Runs a daemon, which is started again if it cannot serve; yields the folder of its sockets."""
    with new_folder(choose_base(temporary_folders())) as folder, _keeper_of(program, folder):
        control, over = MpsControl(program, folder.pipe, limits.answer_s), threading.Event()
        try:
            daemon = _start(control, folder, gpu, limits)
            healing = partial(_heal_daemon, control, folder, gpu.uuid, limits, daemon, over)
            healer = threading.Thread(target=healing, name="mps-health", daemon=True)
            healer.start()
            try:
                yield folder.pipe
            finally:
                over.set()
                healer.join()
        finally:
            # Also after a refused start, which may have left a daemon.
            _end(control, folder, limits)


def _start(control: MpsControl, folder: DaemonFolder, gpu: Gpu, limits: DaemonLimits) -> psutil.Process:
    try:
        daemon = start_daemon(control, folder, gpu.uuid, limits.start_s)
    except MpsError as error:
        raise UserError(
            f"GPU {gpu.index} has no MPS daemon: {error}; --shares takes other backends"
        ) from None
    _LOG.info("GPU %d: an MPS daemon runs at %s, process %d", gpu.index, folder.pipe, daemon.pid)
    return daemon


@contextmanager
def _keeper_of(program: Path, folder: DaemonFolder) -> Iterator[None]:
    """Keeps a process beside this one that ends the daemon in the folder if this one dies."""
    keeper = subprocess.Popen(
        # -P: no module in the current folder may take the place of an installed one.
        [sys.executable, "-P", "-m", "ekya.gpu.mps.keeper", program, folder.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C signals the terminal's process group, and the jobs need the daemon until they have ended.
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield
    finally:
        keeper.communicate()


def _heal_daemon(
    control: MpsControl,
    folder: DaemonFolder,
    gpu_uuid: str,
    limits: DaemonLimits,
    daemon: psutil.Process,
    over: threading.Event,
) -> None:
    """Starts a daemon again in its folder whenever it cannot serve, at most ``max_restarts`` times."""
    for started in range(1, limits.max_restarts + 2):
        wrong = _wait_unusable(control, limits, daemon, over)
        if wrong is None:
            return
        named = f"the MPS daemon at {folder.pipe} {wrong}"
        if started > limits.max_restarts:
            _LOG.error("%s, and is not started again any more; what needs it fails", named)
            return
        try:
            daemon = restart_daemon(control, folder, gpu_uuid, limits)
        except MpsError as error:
            _LOG.error("%s, and cannot be started again: %s", named, error)
        else:
            _LOG.error("%s, and was started again (%d of at most %d)", named, started, limits.max_restarts)


def _wait_unusable(
    control: MpsControl, limits: DaemonLimits, daemon: psutil.Process, over: threading.Event
) -> str | None:
    """Waits until the daemon cannot serve any more; returns why, or None when the run is over.

    A fault of a client stops a server with all its clients, and new ones are refused until all have exited,
    which a job that idles never does.
    """
    asked_s, silent = time.monotonic(), False
    while not over.wait(min(_POLL_S, limits.health_every_s)):
        if not still_runs(daemon):
            return "died"
        if time.monotonic() - asked_s < limits.health_every_s:
            continue
        try:
            if any(control.has_fault(server) for server in control.servers()):
                return "was stopped by a fault of a client"
        except MpsError as error:
            if not silent:
                _LOG.error("%s; jobs that start now wait, and fail if it stays so", error)
            silent = True
        asked_s = time.monotonic()
    return None
