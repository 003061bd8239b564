"""The process that keeps one MPS daemon: starts it, again where it dies, and ends it when its owner ends.

Started by ``ekya.gpu.mps_service`` as ``python -m ekya.gpu.mps_keeper``; imports neither ray nor torch.
Standard input brings one JSON object. Its end means that the owner wants no more of the daemon, or is dead:
the kernel closes it either way, so that there is one way to end a daemon and not two. Standard output
brings what came of the start, one JSON object a line, then what became of a daemon that died, and at the end
what could not be ended.
"""

import json
import select
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ekya.gpu.mps_control import MpsControl, MpsError
from ekya.gpu.mps_daemon import Patience, end_daemon, start_again, start_daemon
from ekya.gpu.mps_folder import DaemonFolder, held
from ekya.gpu.processes import Process, still_runs

_LOOK_EVERY_S = 0.5
"""From one look at whether the daemon lives to the next; jobs wait for what comes of it."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a keeper is to do.

    Attributes:
        program: the control program.
        root: the daemon's folder, which its owner has made.
        gpu_uuid: of the GPU that the daemon serves.
        patience: for everything that it does.
    """

    program: Path
    root: Path
    gpu_uuid: str
    patience: Patience

    @property
    def folder(self) -> DaemonFolder:
        """The daemon's folder."""
        return DaemonFolder(self.root)

    @property
    def control(self) -> MpsControl:
        """Asks the daemon."""
        return MpsControl(self.program, self.folder.pipe, self.patience.answer_s)

    def to_json(self) -> str:
        """As one line."""
        paths = {"program": str(self.program), "root": str(self.root)}
        return json.dumps(paths | {"gpu_uuid": self.gpu_uuid, "patience": asdict(self.patience)})

    @staticmethod
    def from_json(text: str) -> "Order":
        """What ``to_json`` made."""
        told = json.loads(text)
        return Order(
            Path(told["program"]), Path(told["root"]), told["gpu_uuid"], Patience(**told["patience"])
        )


def main() -> None:
    """Keeps a daemon as standard input says."""
    # Who wants the daemon ended ends its owner. What a terminal or a service manager sends to all
    # processes at once must not take the daemon away from jobs that are still ending.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the daemon would inherit.
        signal.signal(number, lambda _number, _frame: None)
    order = Order.from_json(sys.stdin.readline())
    with held(order.folder) as still_there:
        if not still_there:
            return
        try:
            daemon = start_daemon(order.control, order.folder, order.gpu_uuid, order.patience.start_s)
            _tell("up", str(daemon.pid))
            _keep(order, daemon)
        except MpsError as error:
            _tell("refused", str(error))
        finally:
            _end(order)


def _keep(order: Order, daemon: Process) -> None:
    """Until the owner wants no more of it. A daemon that dies is started again where it was."""
    named, most = f"the MPS daemon at {order.folder.pipe}", order.patience.starts_again
    for started in range(1, most + 1):
        if not _dies_before_owner(daemon):
            return
        try:
            daemon = start_again(order.control, order.folder, order.gpu_uuid, order.patience)
        except MpsError as error:
            _tell("failed", f"{named} died, and cannot be started again: {error}")
        else:
            _tell("again", f"{named} died, and was started again ({started} of at most {most})")
    if _dies_before_owner(daemon):
        _tell("over", f"{named} is not started again any more; what needs it fails")
        sys.stdin.read()


def _dies_before_owner(daemon: Process) -> bool:
    """Waits for the end of either."""
    while not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        if not still_runs(daemon):
            return True
    return False


def _end(order: Order) -> None:
    try:
        end_daemon(order.control, order.folder, order.patience)
    except MpsError as error:
        _tell("left", str(error))


def _tell(what: str, text: str) -> None:
    try:
        sys.stdout.write(json.dumps({what: text}) + "\n")
        sys.stdout.flush()
    except OSError:  # Nobody listens any more.
        return


if __name__ == "__main__":
    main()
