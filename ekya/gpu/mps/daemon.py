"""Life cycle of one MPS daemon of the current user: start, reliable identification, orderly end.

Does not touch the GPU's compute mode, clocks and MIG.
"""

import json
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
from ekya.system.files import write_text_atomic
from ekya.system.processes import (
    arguments_of,
    environment_of,
    find_process,
    is_own,
    own_processes,
    runs_executable,
    send_signal,
    started_s,
    still_runs,
)

_LOG = logging.getLogger(__name__)
_POLL_S = 0.05
_CLOCKS_DIFFER_S = 1.0


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
        max_restarts: most restarts of a daemon that died.
    """

    start_s: float = 15.0
    answer_s: float = 5.0
    drain_s: float = 20.0
    force_after_s: int = 5
    kill_s: float = 3.0
    health_every_s: float = 5.0
    max_restarts: int = 2

    @property
    def end_s(self) -> float:
        """Upper bound of the time to end a daemon, with both signals."""
        return self.drain_s + 2 * self.answer_s + self.force_after_s + 4 * self.kill_s


def start_daemon(
    control: MpsControl,
    folder: DaemonFolder,
    gpu_uuid: str,
    within_s: float,
    now_s: Callable[[], float] = time.monotonic,
) -> psutil.Process:
    """Starts a daemon for one GPU in its folder, and waits until it replies. Tests pass their own clock.

    Raises:
        MpsError: the daemon does not start, is not up in time, or cannot be identified. It may still run;
            ``end_daemon`` ends it.
    """
    # By the clock of start times in /proc, which counts suspended time. These are cut to whole ticks, hence
    # the margin.
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _CLOCKS_DIFFER_S
    give_up_s = now_s() + within_s
    _call_start(control, folder, gpu_uuid, within_s)
    why = "it writes no pid file"
    came, looked = False, None
    while True:
        pid, before = folder.pid(), looked
        looked = pid
        daemon = _by_pid_file(folder, began_s)
        if daemon is not None:
            came = True
            try:
                control.servers()
            except MpsError as error:
                why = str(error)
            else:
                write_text_atomic(folder.record, json.dumps(_identity(daemon)))
                return daemon
        elif came or (pid is not None and pid == before and find_process(pid) is None):
            # Looked at twice: the first look may have read a number that was only partly written.
            raise MpsError("the MPS daemon died as soon as it was started")
        elif pid is not None:
            why = f"process {pid} of its pid file is not a daemon that was just started"
        if now_s() >= give_up_s:
            raise MpsError(f"the MPS daemon is not up within {within_s:g} s: {why}")
        time.sleep(_POLL_S)


def find_daemon(folder: DaemonFolder) -> psutil.Process | None:
    """Returns the live daemon of a folder, never another process that reuses its PID; None without one."""
    try:
        recorded = json.loads(folder.record.read_text())
        process = find_process(int(recorded["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        # The starting process may have died before it wrote the record.
        return next(iter(_of_folder(folder, CONTROL)), None)
    if process is None or _identity(process) != recorded or not is_own(process):
        return None
    return process


def trouble(control: MpsControl, daemon: psutil.Process | None) -> str | None:
    """Returns what is wrong with a daemon, as a clause; None where it is healthy.

    Args:
        control: sends it requests.
        daemon: its process; None for an external daemon.
    """
    if daemon is not None and not still_runs(daemon):
        return f"the MPS daemon at {control.pipe} has died"
    try:
        servers = control.servers()
        faulty = next((server for server in servers if control.has_fault(server)), None)
    except MpsError as error:
        return str(error)
    if faulty is not None:
        return f"server {faulty} of the MPS daemon at {control.pipe} was stopped by a fault of a client"
    if len(servers) > 1 and daemon is not None:
        return f"the MPS daemon at {control.pipe} has {len(servers)} servers instead of one"
    return None


def restart_daemon(
    control: MpsControl, folder: DaemonFolder, gpu_uuid: str, limits: DaemonLimits
) -> psutil.Process:
    """Restarts a daemon that died in the same folder, where restarted jobs will look for it.

    Its surviving servers and their clients are ended first. A new daemon would not know them, and two servers
    on a GPU would not keep their clients apart.

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
    daemon = find_daemon(folder)
    servers: list[psutil.Process] = []
    if daemon is not None:
        servers = _drain(control, limits.drain_s)
        try:
            control.quit_daemon(limits.force_after_s)
        except MpsError as error:
            _LOG.warning("%s, and is ended by a signal", error)
    known = [*servers] if daemon is None else [daemon, *servers]
    # Processes that are neither recorded nor listed are found by the folder in their environment.
    unknown = [one for one in _of_folder(folder, CONTROL, SERVER) if one not in known]
    left = [process for process in (*known, *unknown) if not _end(process, limits.kill_s)]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise MpsError(f"process {pids} of the MPS daemon in {folder.root} cannot be ended; end it by hand")
    folder.remove_folder()


def _call_start(control: MpsControl, folder: DaemonFolder, gpu_uuid: str, within_s: float) -> None:
    environment = daemon_environment(folder.pipe) | {
        LOG_VARIABLE: str(folder.log),
        VISIBLE_VARIABLE: gpu_uuid,
    }
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
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"{control.program} -d does not come back within {within_s:g} s") from None
        except OSError as error:
            raise MpsError(f"{control.program} cannot be run ({error.strerror})") from None
    if started.returncode != 0:
        why = last_line(said.read_text(errors="replace")) or f"exit status {started.returncode}"
        raise MpsError(f"{control.program} -d refuses ({why})")


def _by_pid_file(folder: DaemonFolder, began_s: float) -> psutil.Process | None:
    pid = folder.pid()
    process = None if pid is None else find_process(pid)
    if process is None or not (is_own(process) and runs_executable(process, CONTROL)):
        return None
    # A stale pid file may name an older process that reuses the number.
    return process if started_s(process) >= began_s else None


def _identity(process: psutil.Process) -> dict[str, float]:
    """Returns what tells a process from another one with its PID."""
    return {"pid": process.pid, "started_s": started_s(process)}


def _of_folder(folder: DaemonFolder, *names: str) -> Iterable[psutil.Process]:
    """Yields own processes started for this folder, of these programs or all, except control clients."""
    for process in own_processes():
        if names and not any(runs_executable(process, name) for name in names):
            continue
        if runs_executable(process, CONTROL) and "-d" not in arguments_of(process):
            continue
        if environment_of(process).get(PIPE_VARIABLE) == str(folder.pipe):
            yield process


def _drain(control: MpsControl, within_s: float) -> list[psutil.Process]:
    """Waits until no client is left or time is up; returns the servers."""
    give_up_s = time.monotonic() + within_s
    servers: list[psutil.Process] = []
    while True:
        try:
            pids = control.servers()
            clients = [client for pid in pids for client in control.clients(pid)]
        except MpsError as error:
            _LOG.warning("%s; its clients are not waited for", error)
            return servers
        looked = [find_process(pid) for pid in pids]
        # A server may have ended since it was listed, and its number be another process's.
        servers = [one for one in looked if one is not None and runs_executable(one, SERVER)]
        if not clients:
            return servers
        if time.monotonic() >= give_up_s:
            _LOG.warning("the MPS daemon at %s is ended with %d clients", control.pipe, len(clients))
            return servers
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
