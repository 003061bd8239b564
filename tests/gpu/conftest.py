import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from fake_mps import FakeMps

from ekya.gpu.mps import service as mps_service
from ekya.gpu.mps.control import CONTROL, SERVER


@pytest.fixture
def fake_mps(monkeypatch):
    # Not tmp_path: the path of a socket below it would be too long.
    home = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    fake = FakeMps(home / "bin", home / "f")
    fake.programs.mkdir()
    fake.folders.mkdir()
    shebang = f"#!{sys.executable}\n"
    fake.program.write_text(shebang + Path(__file__).with_name("fake_mps_control.py").read_text())
    (fake.programs / SERVER).write_text(f"{shebang}import time\ntime.sleep(60)\n")
    for name in (CONTROL, SERVER):
        (fake.programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps_service, "temporary_folders", lambda: (fake.folders,))
    yield fake
    for pid in fake.running():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(home)
