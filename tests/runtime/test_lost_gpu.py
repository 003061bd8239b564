"""A process that has lost its GPU ends as if it had been killed, and one that has not goes on."""

import signal
import subprocess
import sys

import pytest

CODE = """
import torch
from ekya.runtime.lost_gpu import end_process_if_gpu_is_lost
end_process_if_gpu_is_lost({error})
print("goes on")
"""


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        ('torch.AcceleratorError("CUDA error: an illegal memory access was encountered")', True),
        ('ValueError("a frame that nobody expected")', False),
    ],
)
def test_only_a_process_without_its_gpu_ends(error, ends):
    ran = subprocess.run([sys.executable, "-c", CODE.format(error=error)], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == ((-signal.SIGKILL, b"") if ends else (0, b"goes on\n"))
