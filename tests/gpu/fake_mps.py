"""Fake of MPS: a real program on the PATH, its daemons, and queries for tests."""

import json
from dataclasses import dataclass
from pathlib import Path

from ekya.gpu.mps.control import CONTROL, MpsControl
from ekya.gpu.mps.daemon import DaemonLimits
from ekya.gpu.mps.folder import DaemonFolder
from ekya.system.processes import find_process

SHORT = DaemonLimits(
    start_s=60.0, answer_s=20.0, drain_s=1.0, force_after_s=1, kill_s=1.0, health_every_s=0.05
)
"""For daemons that respond immediately, on however busy a machine; ended with their clients soon."""


@dataclass(frozen=True)
class FakeMps:
    """A control program on the PATH, and the folders of its daemons."""

    programs: Path
    folders: Path

    @property
    def program(self):
        return self.programs / CONTROL

    def behave(self, **ways):
        """Sets the behaviour from the next command on."""
        path = self.programs / "new"
        path.write_text(json.dumps(ways))
        path.rename(self.programs / "behaviour.json")

    def calls(self):
        path = self.programs / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def daemons(self):
        return [call for call in self.calls() if "daemon" in call]

    def asked(self):
        return [call["asked"] for call in self.calls() if "asked" in call]

    def folders_left(self):
        return [DaemonFolder(path) for path in sorted(self.folders.glob("ekya-mps-*"))]

    def control(self, folder):
        return MpsControl(self.program, folder.pipe, SHORT.answer_s)

    def running(self):
        """Returns the process numbers of daemons and servers that are still alive."""
        pids = [call[which] for call in self.daemons() for which in ("daemon", "server")]
        return [pid for pid in pids if find_process(pid) is not None]
