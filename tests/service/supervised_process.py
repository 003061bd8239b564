"""A supervisor in a process of its own, over small services written for a test."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from waiting import HANG_GUARD_S, wait_until

_MAIN = """
import json, logging, signal, sys
from pathlib import Path
from ekya.core.errors import UserError
from ekya.service.supervisor import Patience, supervise_service
logging.basicConfig(level=logging.INFO, format="%(message)s")
for number in (signal.SIGHUP, signal.SIGINT):  # these may be ignored in the tests themselves
    signal.signal(number, signal.SIG_IGN if number in json.loads(sys.argv[4]) else signal.SIG_DFL)
try:
    patience = Patience(**json.loads(sys.argv[3]))
    sys.exit(supervise_service(json.loads(sys.argv[1]), Path(sys.argv[2]), patience))
except UserError as error:
    sys.stderr.write(f"refused: {error}")
    sys.exit(9)
"""

_SERVICE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ekya.service.supervised import Heartbeat, die_with_parent
die_with_parent()
heartbeat = Heartbeat()
folder = Path({folder!r})
at_start = [one.name for one in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(one) is signal.SIG_IGN]
came = []
def stop(number, _): came.append(signal.Signals(number).name)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, stop)
def say(name, text=""):
    temporary = folder / f".{{name}}.part"
    temporary.write_text(str(text))
    temporary.rename(folder / name)
def serve():
    heartbeat()
    say(f"serving-{{starts}}")
    while not came:
        heartbeat()
        time.sleep(0.02)
    say("stopped", came[0])
starts = len(list(folder.glob("started-*"))) + 1
say(f"started-{{starts}}", os.getpid())
{body}
"""


class Supervised:
    """A supervisor over a service.

    Args:
        tmp_path: empty folder of the test.
        body: the service: Python, with ``heartbeat``, ``say``, ``serve``, ``starts``, ``folder`` and the
            names ``at_start`` of signals that it was started to ignore. It hears signals before it has
            started, so one that comes after ``pid`` is never lost.
        environment: further variables of the supervisor.
        ignored: numbers of signals that the supervisor is started to ignore.
        patience: its limits, short ones by default.
    """

    def __init__(self, tmp_path, body="serve()", environment=None, ignored=(), **patience):
        self.folder = tmp_path / "runs" / "yard"
        self.said = tmp_path / "said"
        self.said.mkdir(exist_ok=True)
        script = tmp_path / "service.py"
        script.write_text(_SERVICE.format(folder=str(self.said), body=body))
        limits = {"delay_s": 0.05, "longest_delay_s": 0.4, "leftover_s": 0.3} | patience
        argv = [sys.executable, str(script)]
        root = Path(__file__).resolve().parents[2]
        options = [json.dumps(argv), str(self.folder), json.dumps(limits), json.dumps(ignored)]
        self._command = [sys.executable, "-c", _MAIN, *options]
        self.ray = tmp_path / "ray"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(root),
            "RAY_TMPDIR": str(self.ray),
            **(environment or {}),
        }
        self._log = tmp_path / "log"
        self.process = self.start()

    def start(self):
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    @property
    def log(self):
        return self._log.read_text()

    def pid(self, start):
        """Waits for the service's start of this number, and returns its pid."""
        return int(self.said_text(f"started-{start}"))

    def said_text(self, name):
        """Waits until the service has said something, and returns it."""
        path = self.said / name
        wait_until(path.is_file, lambda: f"{name} was not said; log: {self.log}")
        return path.read_text()

    def ends(self):
        """Waits for the end of the supervisor and returns its exit code."""
        return self.process.wait(HANG_GUARD_S)

    def stop(self, number=signal.SIGTERM):
        """Stops the supervisor and returns its exit code."""
        self.process.send_signal(number)
        return self.ends()

    def close(self):
        """Ends whatever is left."""
        self.process.kill()
        self.process.wait()
        for path in self.said.iterdir():
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    def restarts(self):
        return json.loads((self.folder / "restarts.json").read_text())


def is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
