"""The process that keeps one MPS daemon: starts it, waits for its owner's end, and ends it.

Started by ``ekya.gpu.mps_service`` as ``python -m ekya.gpu.mps_keeper``; imports neither ray nor torch.
Standard input brings one JSON object. Its end means that the owner wants no more of the daemon, or is dead:
the kernel closes it either way, so that there is one way to end a daemon and not two. Standard output
brings what came of the start, one JSON object a line, and at the end what could not be ended.
"""

import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ekya.gpu.mps_control import MpsControl, MpsError
from ekya.gpu.mps_daemon import Patience, end_daemon, start_daemon
from ekya.gpu.mps_folder import DaemonFolder, held


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
            sys.stdin.read()
        except MpsError as error:
            _tell("refused", str(error))
        finally:
            _end(order)


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
