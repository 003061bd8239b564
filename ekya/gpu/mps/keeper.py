"""Keeper process of one MPS daemon: ends it when its owner has died.

Started by ``ekya.gpu.mps.service`` as ``python -m ekya.gpu.mps.keeper PROGRAM FOLDER``; imports neither ray
nor torch. Its standard input is a pipe whose other end the owner holds: the kernel closes it however the
owner ends. An owner that ends in order has ended its daemon by then.
"""

import signal
import sys
from pathlib import Path

from ekya.gpu.mps.control import MpsControl
from ekya.gpu.mps.daemon import DaemonLimits, end_daemon
from ekya.gpu.mps.folder import DaemonFolder, held


def main() -> None:
    """Waits for the owner's end, and ends the daemon that it has left."""
    # A signal that a terminal or a service manager sends to all processes together must not take the keeper
    # away from an owner that is still ending its jobs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    program, folder = Path(sys.argv[1]), DaemonFolder(Path(sys.argv[2]))
    with held(folder):
        sys.stdin.read()
        if folder.root.exists():
            end_daemon(MpsControl(program, folder.pipe), folder, DaemonLimits())


if __name__ == "__main__":
    main()
