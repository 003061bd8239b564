"""The control program of CUDA's multi-process service: where it is, and what its daemon answers."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

PID_FILE = f"{CONTROL}.pid"
LONGEST_NAME = PID_FILE
"""Of all files that a daemon makes in its folder the one with the longest name."""

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
_LOOK_AGAIN_S = 0.05


class MpsError(Exception):
    """What a daemon or its control program did wrong, as a clause."""


def find_control(folders: Iterable[Path] | None = None) -> Path | None:
    """The control program: on the PATH, beside the driver's library, or where drivers put it.

    Args:
        folders: where to look behind the PATH; by default beside the driver's libraries that this
            process has loaded, and in the folders into which drivers and containers put programs.
    """
    on_path = shutil.which(CONTROL)
    if on_path is not None:
        return Path(on_path).absolute()
    places = (*driver_folders(), *_USUAL_FOLDERS) if folders is None else folders
    candidates = (folder / CONTROL for folder in places)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def driver_folders(maps: Path = _MAPS) -> Iterator[Path]:
    """Folders of the driver's libraries that this process has loaded, and of the programs beside them."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/") > 0}
    for path in sorted(paths):
        if path.name.startswith(_DRIVER_LIBRARIES):
            yield path.parent
            # As in /usr/lib64, /usr/lib/x86_64-linux-gnu and /opt/driver/lib.
            yield from (above / "bin" for above in path.parents[1:3])


def is_too_long(pipe: Path) -> bool:
    """Whether no daemon could be reached in this folder."""
    return len(os.fsencode(pipe / LONGEST_NAME)) > MAX_SOCKET_BYTES


def daemon_environment(pipe: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment that means the daemon in this folder, free of whatever else was set for MPS."""
    base = os.environ if base is None else base
    return {name: value for name, value in base.items() if not name.startswith("CUDA_MPS_")} | {
        PIPE_VARIABLE: str(pipe)
    }


@dataclass(frozen=True, slots=True)
class MpsControl:
    """Asks the daemon in one folder. Starts nothing and makes no CUDA context.

    Attributes:
        program: the control program.
        pipe: the daemon's folder.
        answer_within_s: how long an answer may take.
    """

    program: Path
    pipe: Path
    answer_within_s: float = _ANSWER_WITHIN_S

    def servers(self) -> tuple[int, ...]:
        """Process numbers of the daemon's servers; empty before the first client.

        Raises:
            MpsError: it does not answer, refuses, or answers something else.
        """
        return self._numbers("get_server_list")

    def clients(self, server: int) -> tuple[int, ...]:
        """Process numbers of a server's clients.

        Raises:
            MpsError: as ``servers``.
        """
        return self._numbers(f"get_client_list {server}")

    def has_fault(self, server: int) -> bool:
        """Whether a client's fault has stopped a server, and with it all of its clients.

        Raises:
            MpsError: the daemon does not answer or refuses.
        """
        # Older daemons do not know the command and answer with a sentence.
        return self._ask(f"get_server_status {server}", self.answer_within_s).strip() == "FAULT"

    def quit(self, force_after_s: int) -> None:
        """Ends the daemon and its servers; it comes back when they are gone.

        Args:
            force_after_s: servers that still have clients after that time are ended with them.

        Raises:
            MpsError: as ``servers``.
        """
        self._ask(f"quit -t {force_after_s}", force_after_s + self.answer_within_s)

    def wait_up(self, within_s: float) -> None:
        """Returns when the daemon answers.

        Raises:
            MpsError: it does not in time.
        """
        give_up_s = time.monotonic() + within_s
        while True:
            try:
                self.servers()
                return
            except MpsError:
                if time.monotonic() >= give_up_s:
                    raise
            time.sleep(_LOOK_AGAIN_S)

    def require_client(self, pid: int, within_s: float = JOIN_WITHIN_S) -> None:
        """Makes sure that a process that has a CUDA context is a client of exactly one server here.

        CUDA works on without MPS where it cannot reach a daemon, and says nothing.

        Raises:
            MpsError: it is not, or nobody answers.
        """
        give_up_s = time.monotonic() + within_s
        while True:
            try:
                servers = self.servers()
                serving = [server for server in servers if pid in self.clients(server)]
            except MpsError:
                # Many jobs may ask at the same moment, and servers come and go.
                if time.monotonic() >= give_up_s:
                    raise
            else:
                if len(serving) == 1:
                    return
                if time.monotonic() >= give_up_s:
                    known = f"{len(serving)} of its {len(servers)} servers"
                    raise MpsError(
                        f"the MPS daemon at {self.pipe} knows process {pid} on {known}, not on one"
                    )
            time.sleep(_LOOK_AGAIN_S)

    def _numbers(self, command: str) -> tuple[int, ...]:
        words = self._ask(command, self.answer_within_s).split()
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
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
