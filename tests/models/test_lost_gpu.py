"""Tests that a process that has lost its GPU ends as if it had been killed, and that others go on."""

import signal
import subprocess
import sys

CODE = """
import torch
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost
end_process_if_gpu_is_lost(ValueError("a frame that nobody expected"))
print("goes on", flush=True)
end_process_if_gpu_is_lost(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
print("goes on without its GPU", flush=True)
"""


def test_end_process_only_if_gpu_is_lost():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, b"goes on\n")
