"""Life cycle of one MPS daemon of the current user: start, identification, orderly end.

Does not touch the GPU's compute mode, clocks and MIG.
"""

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from ekya.gpu.mps.control import (
    CONTROL,
    LOG_VARIABLE,
    PIPE_VARIABLE,
    SERVER,
    VISIBLE_VARIABLE,
    MpsControl,
    MpsError,
    daemon_environment,
    last_line,
)
from ekya.gpu.mps.folder import DaemonFolder
from ekya.system.processes import (
    arguments_of,
    environment_of,
    is_own,
    own_processes,
    runs_executable,
    send_signal,
    still_runs,
)

_LOG = logging.getLogger(__name__)
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class DaemonLimits:
    """Timeouts and limits for a daemon.

    Attributes:
        start_s: until its first reply.
        answer_s: for any other reply.
        drain_s: for clients to end by themselves before they are ended with their server.
        force_after_s: for servers to end after ``quit``.
        kill_s: for a signal to take effect.
        health_every_s: interval of health checks.
        max_restarts: most restarts of a daemon that died or was stopped by a fault.
    """

    start_s: float = 15.0
    answer_s: float = 5.0
    drain_s: float = 20.0
    force_after_s: int = 5
    kill_s: float = 3.0
    health_every_s: float = 5.0
    max_restarts: int = 2


def start_daemon(
    control: MpsControl,
    folder: DaemonFolder,
    gpu_uuid: str,
    within_s: float,
    now_s: Callable[[], float] = time.monotonic,
) -> psutil.Process:
    """Starts a daemon for one GPU in its folder, and waits until it replies. Tests pass their own clock.

    Raises:
        MpsError: the daemon does not start, or is not up in time. It may still run; ``end_daemon`` ends it.
    """
    give_up_s = now_s() + within_s
    _call_start(control, folder, gpu_uuid, within_s)
    looks_without, why = 0, "no process of it is found"
    while True:
        daemon = find_daemon(folder)
        if daemon is not None:
            try:
                control.servers()
                return daemon
            except MpsError as error:
                why = str(error)
        elif looks_without:
            # Looked at twice: it forks while it starts, so that the first look may have come between.
            raise MpsError("the MPS daemon died as soon as it was started")
        looks_without += daemon is None
        if now_s() >= give_up_s:
            raise MpsError(f"the MPS daemon is not up within {within_s:g} s: {why}")
        time.sleep(_POLL_S)


def find_daemon(folder: DaemonFolder) -> psutil.Process | None:
    """Returns the live daemon of a folder; None without one.

    It is known by the folder in its environment, which no other process of this program has: not by a number
    in a file, which may be another process's by now.
    """
    return next(iter(_of_folder(folder, CONTROL)), None)


def restart_daemon(
    control: MpsControl, folder: DaemonFolder, gpu_uuid: str, limits: DaemonLimits
) -> psutil.Process:
    """Starts a daemon again in the same folder, where restarted jobs will look for it.

    What is left of it, its servers and their clients are ended first. A new daemon would not know them, and
    two servers on a GPU would not keep their clients apart.

    Raises:
        MpsError: a surviving process cannot be ended, or as ``start_daemon``.
    """
    left = list(_of_folder(folder))
    for process in left:
        send_signal(process, signal.SIGKILL)
    if not all(_end(process, limits.kill_s) for process in left):
        raise MpsError(f"what was left of the MPS daemon in {folder.root} cannot be ended")
    folder.clear_remains()
    return start_daemon(control, folder, gpu_uuid, limits.start_s)


def end_daemon(control: MpsControl, folder: DaemonFolder, limits: DaemonLimits) -> None:
    """Waits for the clients to end, ends the daemon with its servers, and removes the folder.

    Raises:
        MpsError: a process cannot be ended; the folder stays.
    """
    if find_daemon(folder) is not None:
        _drain(control, limits.drain_s)
        try:
            control.quit_daemon(limits.force_after_s)
        except MpsError as error:
            _LOG.warning("%s, and is ended by a signal", error)
    remaining = list(_of_folder(folder, CONTROL, SERVER))
    left = [process for process in remaining if not _end(process, limits.kill_s)]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise MpsError(f"process {pids} of the MPS daemon in {folder.root} cannot be ended; end it by hand")
    folder.remove_folder()


def _call_start(control: MpsControl, folder: DaemonFolder, gpu_uuid: str, within_s: float) -> None:
    own = {LOG_VARIABLE: str(folder.log), VISIBLE_VARIABLE: gpu_uuid}
    said = folder.log / "start.log"
    # A file, since the daemon inherits the output: a pipe would stay open until the daemon ends.
    with said.open("wb") as output:
        try:
            # The call returns once the daemon listens.
            started = subprocess.run(
                [control.program, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=within_s,
                check=False,
                env=daemon_environment(folder.pipe) | own,
                # Ctrl-C signals the terminal's processes, and jobs need the daemon until they have ended.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"{control.program} -d does not come back within {within_s:g} s") from None
        except OSError as error:
            raise MpsError(f"{control.program} cannot be run ({error.strerror})") from None
    if started.returncode != 0:
        why = last_line(said.read_text(errors="replace")) or f"exit status {started.returncode}"
        raise MpsError(f"{control.program} -d refuses ({why})")


def _of_folder(folder: DaemonFolder, *names: str) -> Iterable[psutil.Process]:
    """Yields own processes started for this folder, of these programs or all, except control clients."""
    for process in own_processes():
        if names and not any(runs_executable(process, name) for name in names):
            continue
        if runs_executable(process, CONTROL) and "-d" not in arguments_of(process):
            continue
        if environment_of(process).get(PIPE_VARIABLE) == str(folder.pipe):
            yield process


def _drain(control: MpsControl, within_s: float) -> None:
    """Waits until no client is left or time is up."""
    give_up_s = time.monotonic() + within_s
    while True:
        try:
            clients = [client for server in control.servers() for client in control.clients(server)]
        except MpsError as error:
            _LOG.warning("%s; its clients are not waited for", error)
            return
        if not clients:
            return
        if time.monotonic() >= give_up_s:
            _LOG.warning("the MPS daemon at %s is ended with %d clients", control.pipe, len(clients))
            return
        time.sleep(_POLL_S)


def _end(process: psutil.Process, within_s: float) -> bool:
    """Waits for a process to end, then sends SIGTERM, then SIGKILL; returns whether it is gone."""
    if not is_own(process):
        return not still_runs(process)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            send_signal(process, number)
        give_up_s = time.monotonic() + within_s
        while still_runs(process):
            if time.monotonic() >= give_up_s:
                break
            time.sleep(_POLL_S)
        else:
            return True
    return False
