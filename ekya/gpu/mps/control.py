"""Finds the control program of CUDA's multi-process service and sends requests to its daemon."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

MAX_SOCKET_BYTES = 107
"""The longest path of a UNIX socket; a longer one makes the daemon unreachable."""

_USUAL_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/bin",
        "/usr/local/bin",
        "/usr/local/nvidia/bin",
        "/run/nvidia/driver/usr/bin",
        "/run/opengl-driver/bin",
        "/usr/lib/wsl/lib",
    )
)
_DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
_MAPS = Path("/proc/self/maps")

_ANSWER_WITHIN_S = 5.0
JOIN_WITHIN_S = 5.0
_POLL_S = 0.05


class MpsError(Exception):
    """Failure of a daemon or its control program; the message is a clause."""


def find_control(folders: Iterable[Path] | None = None) -> Path | None:
    """Returns the path of the control program; None where it is not found.

    Args:
        folders: searched after the PATH; by default those beside the driver's libraries that this process
            has loaded, then those into which drivers and containers install programs.
    """
    on_path = shutil.which(CONTROL)
    if on_path is not None:
        return Path(on_path).absolute()
    places = (*driver_folders(), *_USUAL_FOLDERS) if folders is None else folders
    candidates = (folder / CONTROL for folder in places)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def driver_folders(maps: Path = _MAPS) -> Iterator[Path]:
    """Yields folders of the driver's libraries that this process has loaded, and the bin folders beside."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return
    # The sixth field of a line of /proc/PID/maps is the path, which may contain spaces.
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/") > 0}
    for path in sorted(paths):
        if path.name.startswith(_DRIVER_LIBRARIES):
            yield path.parent
            # For libraries in /usr/lib64, /usr/lib/x86_64-linux-gnu or /opt/driver/lib.
            yield from (above / "bin" for above in path.parents[1:3])


def is_too_long(pipe: Path) -> bool:
    """Returns whether the folder's path is too long for a daemon's files; its longest name decides."""
    return len(os.fsencode(pipe / f"{CONTROL}.pid")) > MAX_SOCKET_BYTES


def daemon_environment(pipe: Path) -> dict[str, str]:
    """Returns this process's environment with the daemon in this folder, without other MPS variables."""
    # A daemon takes an inherited percentage as the default of all its clients.
    other = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return other | {PIPE_VARIABLE: str(pipe)}


@dataclass(frozen=True, slots=True)
class MpsControl:
    """Sends requests to the daemon in one folder. Starts nothing and makes no CUDA context.

    Attributes:
        program: the control program.
        pipe: the daemon's folder.
        answer_within_s: timeout of a request.
    """

    program: Path
    pipe: Path
    answer_within_s: float = _ANSWER_WITHIN_S

    def servers(self) -> tuple[int, ...]:
        """Returns PIDs of the daemon's servers; empty before the first client.

        Raises:
            MpsError: the daemon does not reply, refuses, or sends an invalid reply.
        """
        return self._numbers("get_server_list")

    def clients(self, server: int) -> tuple[int, ...]:
        """Returns PIDs of a server's clients.

        Raises:
            MpsError: as ``servers``.
        """
        return self._numbers(f"get_client_list {server}")

    def has_fault(self, server: int) -> bool:
        """Returns whether a client's fault has stopped a server with all its clients.

        Raises:
            MpsError: the daemon does not reply or refuses.
        """
        # Older daemons do not know the command and reply with a sentence.
        return self._ask(f"get_server_status {server}", self.answer_within_s).strip() == "FAULT"

    def quit_daemon(self, force_after_s: int) -> None:
        """Ends the daemon and its servers, and waits until they are gone.

        Args:
            force_after_s: time after which servers that still have clients are ended with them.

        Raises:
            MpsError: as ``servers``.
        """
        self._ask(f"quit -t {force_after_s}", force_after_s + self.answer_within_s)

    def wait_up(self, within_s: float) -> None:
        """Waits until the daemon replies.

        Raises:
            MpsError: the daemon does not reply in time.
        """
        _retry(self.servers, within_s)

    def require_client(self, pid: int, within_s: float = JOIN_WITHIN_S) -> None:
        """Checks that a process that has a CUDA context is a client of exactly one server here.

        CUDA silently runs without MPS where it cannot reach a daemon.

        Raises:
            MpsError: the process is no such client, or the daemon does not reply.
        """

        def check_once() -> None:
            servers = self.servers()
            serving = sum(pid in self.clients(server) for server in servers)
            if serving != 1:
                known = f"{serving} of its {len(servers)} servers"
                raise MpsError(f"the MPS daemon at {self.pipe} knows process {pid} on {known}, not on one")

        # Many jobs may send requests at the same time, and servers come and go.
        _retry(check_once, within_s)

    def _numbers(self, command: str) -> tuple[int, ...]:
        words = self._ask(command, self.answer_within_s).split()
        # isdigit alone also accepts characters such as ², which int refuses.
        if not all(word.isascii() and word.isdigit() for word in words):
            raise MpsError(
                f"the MPS daemon answers {' '.join(words)[:80]!r} to {command.split(maxsplit=1)[0]}"
            )
        return tuple(int(word) for word in words)

    def _ask(self, command: str, within_s: float) -> str:
        try:
            answer = subprocess.run(
                [self.program],
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=False,
                env=daemon_environment(self.pipe),
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"the MPS daemon does not answer {command} within {within_s:g} s") from None
        except OSError as error:
            raise MpsError(f"{self.program} cannot be run ({error.strerror})") from None
        if answer.returncode != 0:
            said = last_line(answer.stderr or answer.stdout)
            raise MpsError(f"the MPS daemon refuses ({said or f'exit status {answer.returncode}'})")
        return answer.stdout


def last_line(text: str) -> str:
    """Returns the last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _retry(check: Callable[[], object], within_s: float) -> None:
    """Repeats a check until it raises nothing, or time is up and it raises MpsError."""
    give_up_s = time.monotonic() + within_s
    while True:
        try:
            check()
            return
        except MpsError:
            if time.monotonic() >= give_up_s:
                raise
        time.sleep(_POLL_S)
