"""Keeper process of one MPS daemon: starts it, restarts it if it dies, and ends it when its owner ends.

Started by ``ekya.gpu.mps.service`` as ``python -m ekya.gpu.mps.keeper``; imports neither ray nor torch.
Standard input carries one JSON object, the config. Its end of file means that the owner no longer needs the
daemon or is dead: the kernel closes it either way, so there is only one way to end a daemon. Standard output
carries one JSON object per line: the result of the start, then restarts of a daemon that died, and at last
processes that could not be ended.
"""

import json
import select
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ekya.gpu.mps.control import MpsControl, MpsError
from ekya.gpu.mps.daemon import DaemonLimits, end_daemon, restart_daemon, start_daemon
from ekya.gpu.mps.folder import DaemonFolder, held
from ekya.system.processes import still_runs

_POLL_S = 0.5
"""Interval of checks that the daemon is alive; jobs wait for a restart."""


@dataclass(frozen=True, slots=True)
class KeeperConfig:
    """Instructions for a keeper.

    Attributes:
        program: the control program.
        root: the daemon's folder, which its owner has made.
        gpu_uuid: UUID of the GPU that the daemon serves.
        limits: the daemon's time limits.
    """

    program: Path
    root: Path
    gpu_uuid: str
    limits: DaemonLimits

    @property
    def folder(self) -> DaemonFolder:
        """The daemon's folder."""
        return DaemonFolder(self.root)

    @property
    def control(self) -> MpsControl:
        """Control program for the daemon."""
        return MpsControl(self.program, self.folder.pipe, self.limits.answer_s)

    def to_json(self) -> str:
        """Returns the config as one line of JSON."""
        paths = {"program": str(self.program), "root": str(self.root)}
        return json.dumps(paths | {"gpu_uuid": self.gpu_uuid, "limits": asdict(self.limits)})

    @staticmethod
    def from_json(text: str) -> "KeeperConfig":
        """Returns the config that ``to_json`` wrote."""
        config = json.loads(text)
        return KeeperConfig(
            Path(config["program"]),
            Path(config["root"]),
            config["gpu_uuid"],
            DaemonLimits(**config["limits"]),
        )


def main() -> None:
    """Keeps a daemon as ordered on standard input."""
    # A daemon is ended by ending its owner. A signal that a terminal or a service manager sends to all
    # processes together must not take the daemon away from jobs that are still ending.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the daemon would inherit.
        signal.signal(number, lambda _number, _frame: None)
    # The owner writes nothing after this line: from now on only end of file makes the input readable.
    config = KeeperConfig.from_json(sys.stdin.readline())
    with held(config.folder) as still_there:
        if not still_there:
            return
        try:
            daemon = start_daemon(config.control, config.folder, config.gpu_uuid, config.limits.start_s)
            _report("up", str(daemon.pid))
            _watch_daemon(config, daemon)
        except MpsError as error:
            _report("refused", str(error))
        finally:
            # Also after a refused start, which may have left a daemon.
            _end(config)


def _watch_daemon(config: KeeperConfig, daemon: psutil.Process) -> None:
    """Keeps the daemon until its owner no longer needs it; restarts it in its folder if it dies."""
    named, most = f"the MPS daemon at {config.folder.pipe}", config.limits.max_restarts
    for started in range(1, most + 1):
        if not _dies_before_owner(daemon):
            return
        try:
            daemon = restart_daemon(config.control, config.folder, config.gpu_uuid, config.limits)
        except MpsError as error:
            _report("failed", f"{named} died, and cannot be started again: {error}")
        else:
            _report("again", f"{named} died, and was started again ({started} of at most {most})")
    if _dies_before_owner(daemon):
        _report("over", f"{named} is not started again any more; what needs it fails")
        # Waits for the owner's end: its jobs may still be using what is left of the daemon.
        sys.stdin.read()


def _dies_before_owner(daemon: psutil.Process) -> bool:
    """Waits until the daemon or the owner ends; returns whether it was the daemon."""
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        if not still_runs(daemon):
            return True
    return False


def _end(config: KeeperConfig) -> None:
    try:
        end_daemon(config.control, config.folder, config.limits)
    except MpsError as error:
        _report("left", str(error))


def _report(what: str, text: str) -> None:
    try:
        sys.stdout.write(json.dumps({what: text}) + "\n")
        sys.stdout.flush()
    except OSError:  # The owner is dead.
        return


if __name__ == "__main__":
    main()
