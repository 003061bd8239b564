"""A supervisor in a process of its own, over small services written for a test."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_MAIN = """
import json, logging, sys
from pathlib import Path
from ekya.core.errors import UserError
from ekya.service.supervisor import Patience, supervise
logging.basicConfig(level=logging.INFO, format="%(message)s")
try:
    sys.exit(supervise(json.loads(sys.argv[1]), Path(sys.argv[2]), Patience(**json.loads(sys.argv[3]))))
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
class Stopped(Exception): pass
def stop(*_): raise Stopped
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
def say(name, text=""):
    temporary = folder / f".{{name}}.part"
    temporary.write_text(str(text))
    temporary.rename(folder / name)
def serve():
    try:
        while True:
            heartbeat()
            time.sleep(0.02)
    except Stopped:
        say("stopped")
starts = len(list(folder.glob("started-*"))) + 1
say(f"started-{{starts}}", os.getpid())
{body}
"""

WITHIN_S = 20.0
"""Longest wait of a test; far more than is needed, since the machine may be busy."""


class Supervised:
    """A supervisor over a service.

    Args:
        tmp_path: empty folder of the test.
        body: the service: Python, with ``heartbeat``, ``say``, ``serve``, ``starts`` and ``folder``.
        environment: further variables of the supervisor.
        patience: its limits, short ones by default.
    """

    def __init__(self, tmp_path, body="serve()", environment=None, **patience):
        self.folder = tmp_path / "runs" / "yard"
        self.said = tmp_path / "said"
        self.said.mkdir(exist_ok=True)
        script = tmp_path / "service.py"
        script.write_text(_SERVICE.format(folder=str(self.said), body=body))
        limits = {"delay_s": 0.05, "longest_delay_s": 0.4, "leftover_s": 0.3} | patience
        argv = [sys.executable, str(script)]
        root = Path(__file__).resolve().parents[2]
        self._command = [sys.executable, "-c", _MAIN, json.dumps(argv), str(self.folder), json.dumps(limits)]
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
        return self.process.wait(WITHIN_S)

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


def wait_until(condition, why):
    ends_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < ends_s, why()
        time.sleep(0.02)


def is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
