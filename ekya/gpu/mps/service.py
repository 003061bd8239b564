"""MPS for a whole run: a separate daemon for each GPU, or daemons that the user has named.

Every backend whose jobs are MPS clients uses this: ``find_mps`` finds what is available and starts
nothing, ``mps_service`` starts and ends the daemons, and ``MpsEnvironment`` is sent to the jobs.
"""

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ekya.core.errors import UserError
from ekya.gpu.mps.control import (
    CONTROL,
    JOIN_WITHIN_S,
    MAX_SOCKET_BYTES,
    PIPE_VARIABLE,
    VISIBLE_VARIABLE,
    MpsControl,
    MpsError,
    find_control,
    is_too_long,
)
from ekya.gpu.mps.daemon import DaemonLimits, end_daemon, find_daemon, trouble
from ekya.gpu.mps.folder import DaemonFolder, abandoned, new_folder, short_enough, temporary_folders, why_none
from ekya.gpu.mps.keeper import KeeperConfig
from ekya.gpu.nvml import Gpu, GpuInventory

_LOG = logging.getLogger(__name__)

EXTERNAL_VARIABLE = "EKYA_MPS_PIPES"
"""Variable with the folders of external daemons, one for each GPU, in CUDA's order."""

_DEFAULT_PIPE = Path("/tmp/nvidia-mps")


@dataclass(frozen=True, slots=True)
class _Daemon:
    """A daemon that jobs use.

    Attributes:
        control: sends it requests.
        folder, news: its folder and its keeper's output; None for an external daemon.
    """

    control: MpsControl
    folder: DaemonFolder | None = None
    news: IO[bytes] | None = None

    def trouble(self) -> str | None:
        """Returns what is wrong with the daemon, as a clause; None where it is healthy."""
        if self.folder is None:
            return trouble(self.control, None)
        process = find_daemon(self.folder)
        if process is None:
            return f"the MPS daemon at {self.control.pipe} has died"
        return trouble(self.control, process)

    def messages(self) -> Iterator[str]:
        """Yields new messages of the daemon's keeper, without waiting."""
        while self.news is not None and select.select([self.news], [], [], 0)[0]:
            line = self.news.readline()
            if not line:
                return
            yield from json.loads(line).values()


@dataclass(frozen=True, slots=True)
class MpsFound:
    """Availability of MPS on this machine.

    Attributes:
        usable: whether a run can use MPS.
        why: what was found, or what is missing and how to get it, as a clause.
        program: the control program.
        external: folders of the daemons that the user has named, one for each GPU; empty to start daemons.
    """

    usable: bool
    why: str
    program: Path | None = None
    external: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class MpsGpu:
    """A GPU and the daemon of its clients.

    Attributes:
        gpu_uuid: UUID of the GPU.
        pipe: folder of its daemon.
    """

    gpu_uuid: str
    pipe: Path


@dataclass(frozen=True, slots=True)
class MpsEnvironment:
    """MPS settings for the processes of jobs; a plain value.

    Attributes:
        program: the control program.
        gpus: one for each GPU of the run.
    """

    program: Path
    gpus: tuple[MpsGpu, ...]

    def client_environment(self, gpu: int) -> dict[str, str]:
        """Returns the environment that makes a process a client on the GPU at this position."""
        served = self.gpus[gpu]
        return {PIPE_VARIABLE: str(served.pipe), VISIBLE_VARIABLE: served.gpu_uuid}

    def wait_for_daemon(self, within_s: float) -> None:
        """Waits until this process's daemon replies, since a daemon that died is restarted.

        Raises:
            MpsError: the daemon does not reply in time.
        """
        MpsControl(self.program, Path(os.environ[PIPE_VARIABLE])).wait_up(within_s)

    def require_client(self, within_s: float = JOIN_WITHIN_S) -> None:
        """Checks that this process, which has a CUDA context, is a client of exactly one server.

        Args:
            within_s: time until the server must list it.

        Raises:
            MpsError: the process is no such client; CUDA itself would silently run without MPS.
        """
        MpsControl(self.program, Path(os.environ[PIPE_VARIABLE])).require_client(os.getpid(), within_s)


def find_mps(inventory: GpuInventory, environment: Mapping[str, str] | None = None) -> MpsFound:
    """Finds the MPS that a run can use. Starts nothing and makes no CUDA context.

    Args:
        inventory: the GPUs.
        environment: environment variables; this process's by default.
    """
    environment = os.environ if environment is None else environment
    if not inventory.gpus:
        return MpsFound(False, inventory.why)
    split = next((gpu for gpu in inventory.gpus if gpu.mig), None)
    if split is not None:
        return MpsFound(
            False, f"GPU {split.index} is split by MIG, where a daemon would serve a part of it only"
        )
    program = find_control()
    if program is None:
        return MpsFound(
            False,
            f"{CONTROL} is neither on the PATH nor where drivers put it (it comes with the NVIDIA driver)",
        )
    named = environment.get(EXTERNAL_VARIABLE, "")
    if named:
        return _check_external(
            program, tuple(Path(one) for one in named.split(os.pathsep)), len(inventory.gpus)
        )
    bases = temporary_folders()
    if short_enough(bases) is None:
        return MpsFound(False, why_none(bases))
    return MpsFound(True, f"{program} can serve each GPU{_unused_daemon(program, environment)}", program)


FindMps = Callable[[GpuInventory], MpsFound]
"""Type of ``find_mps`` and of the tests' replacements."""


@contextmanager
def mps_service(
    found: MpsFound, gpus: Sequence[Gpu], limits: DaemonLimits | None = None
) -> Iterator[MpsEnvironment]:
    """Provides a daemon for each of these GPUs until the end of the block.

    Daemons started here are restarted if they die, and ended with the block or with this process; daemons
    that the user has named are neither restarted nor ended. Daemons left by a dead owner and keeper are
    ended first.

    Raises:
        UserError: MPS cannot be used, or a daemon does not start or reply.
    """
    if not found.usable or found.program is None:
        raise UserError(f"MPS cannot be used here: {found.why}")
    limits = limits or DaemonLimits()
    with ExitStack() as stack:
        if found.external:
            daemons = [_external_daemon(found.program, pipe, limits) for pipe in found.external[: len(gpus)]]
        else:
            end_abandoned(found.program, limits)
            daemons = [stack.enter_context(_daemon_with_keeper(found.program, gpu, limits)) for gpu in gpus]
        # Entered last, so that it ends first and does not report the daemons' orderly end as a death.
        stack.enter_context(_watched(daemons, limits.health_every_s))
        served = (MpsGpu(gpu.uuid, one.control.pipe) for gpu, one in zip(gpus, daemons, strict=True))
        yield MpsEnvironment(found.program, tuple(served))


def end_abandoned(program: Path, limits: DaemonLimits) -> None:
    """Ends daemons of the current user whose owner and keeper have both died, and removes their folders."""
    for base in temporary_folders():
        with abandoned(base) as folders:
            for folder in folders:
                _LOG.warning("%s was left behind by a run that died; it is tidied up", folder.root)
                try:
                    end_daemon(MpsControl(program, folder.pipe, limits.answer_s), folder, limits)
                except MpsError as error:
                    _LOG.warning("%s", error)


def _check_external(program: Path, pipes: tuple[Path, ...], gpus: int) -> MpsFound:
    if len(pipes) != gpus:
        return MpsFound(
            False, f"{EXTERNAL_VARIABLE} names {len(pipes)} folders for {gpus} GPUs; name one for each"
        )
    for pipe in pipes:
        if is_too_long(pipe):
            return MpsFound(
                False, f"{EXTERNAL_VARIABLE}: {pipe} is too long for a socket of {MAX_SOCKET_BYTES} bytes"
            )
        wrong = trouble(MpsControl(program, pipe), None)
        if wrong is not None:
            return MpsFound(False, f"{EXTERNAL_VARIABLE}: no daemon can be used at {pipe}: {wrong}")
    named = ", ".join(str(pipe) for pipe in pipes)
    return MpsFound(True, f"an MPS daemon answers at {named}, as {EXTERNAL_VARIABLE} says", program, pipes)


def _unused_daemon(program: Path, environment: Mapping[str, str]) -> str:
    """Returns a remark on a daemon that already runs and is not used; empty without one."""
    pipe = Path(environment.get(PIPE_VARIABLE) or _DEFAULT_PIPE)
    if not (pipe / "control").exists() or trouble(MpsControl(program, pipe), None) is not None:
        return ""
    return f"; the daemon that runs at {pipe} is left alone (set {EXTERNAL_VARIABLE}={pipe} to use it)"


def _external_daemon(program: Path, pipe: Path, limits: DaemonLimits) -> _Daemon:
    control = MpsControl(program, pipe, limits.answer_s)
    wrong = trouble(control, None)
    if wrong is not None:
        raise UserError(f"{EXTERNAL_VARIABLE}: no daemon can be used at {pipe}: {wrong}")
    return _Daemon(control)


@contextmanager
def _daemon_with_keeper(program: Path, gpu: Gpu, limits: DaemonLimits) -> Iterator[_Daemon]:
    """Runs a daemon under a keeper process, which ends it when this process asks for that or dies."""
    bases = temporary_folders()
    base = short_enough(bases)
    if base is None:
        raise UserError(why_none(bases))
    with new_folder(base) as folder:
        config = KeeperConfig(program, folder.root, gpu.uuid, limits)
        keeper = subprocess.Popen(
            # -P: no module in the current folder may take the place of an installed one.
            [sys.executable, "-P", "-m", "ekya.gpu.mps.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Unbuffered: ``select`` does not see lines that were already read into a buffer.
            bufsize=0,
            stderr=subprocess.DEVNULL,
            # Ctrl-C signals the terminal's process group, and the jobs need the daemon until they have ended.
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            _wait_up(keeper, config, gpu)
            yield _Daemon(config.control, config.folder, keeper.stdout)
        finally:
            _end_keeper(keeper, config)


def _wait_up(keeper: subprocess.Popen[bytes], config: KeeperConfig, gpu: Gpu) -> None:
    assert keeper.stdin is not None and keeper.stdout is not None
    wait_s = config.limits.start_s + config.limits.answer_s + config.limits.kill_s
    reply: dict[str, str] = {}
    try:
        keeper.stdin.write(f"{config.to_json()}\n".encode())
        keeper.stdin.flush()
        if select.select([keeper.stdout], [], [], wait_s)[0]:
            reply = json.loads(keeper.stdout.readline() or b"{}")
    except (OSError, ValueError):
        reply = {}
    daemon = find_daemon(config.folder) if "up" in reply else None
    if daemon is None:
        why = reply.get("refused", "the process that keeps it has ended")
        raise UserError(f"GPU {gpu.index} has no MPS daemon: {why}; --shares takes other backends")
    _LOG.info("GPU %d: an MPS daemon runs at %s, process %d", gpu.index, config.folder.pipe, daemon.pid)


def _end_keeper(keeper: subprocess.Popen[bytes], config: KeeperConfig) -> None:
    """Makes the keeper end the daemon, and ends it here if the keeper fails."""
    assert keeper.stdin is not None and keeper.stdout is not None
    with suppress(OSError):  # The keeper is already dead.
        keeper.stdin.close()
    try:
        keeper.wait(config.limits.end_s)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    keeper.stdout.close()
    # The keeper removes the folder when everything has ended, so it did not succeed.
    if config.root.exists():
        try:
            end_daemon(config.control, config.folder, config.limits)
        except MpsError as error:
            _LOG.error("%s", error)


@contextmanager
def _watched(daemons: Sequence[_Daemon], every_s: float) -> Iterator[None]:
    """Polls the daemons' health in a thread and logs changes."""
    over = threading.Event()

    def watch() -> None:
        known: list[str | None] = [None] * len(daemons)
        while not over.wait(every_s):
            for place, daemon in enumerate(daemons):
                for message in daemon.messages():
                    _LOG.error("%s", message)
                wrong = daemon.trouble()
                if wrong == known[place]:
                    continue
                known[place] = wrong
                if wrong is None:
                    _LOG.warning("the MPS daemon at %s is well again", daemon.control.pipe)
                else:
                    _LOG.error("%s; jobs that start now wait, and fail if it stays so", wrong)

    watcher = threading.Thread(target=watch, name="mps-health", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
