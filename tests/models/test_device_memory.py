"""Recognising out-of-memory errors and a lost GPU, and measuring without a GPU."""

import signal
import subprocess
import sys

import pytest
import torch

from ekya.models.edge.device_memory import begin_peak, free_cache, is_gpu_lost, is_out_of_memory, peak_bytes


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_is_out_of_memory_recognises_every_kind_of_error(error, out_of_memory):
    assert is_out_of_memory(error) is out_of_memory


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_is_gpu_lost_recognises_errors_of_cuda(error, lost):
    assert is_gpu_lost(error) is lost


def test_is_out_of_memory_recognises_torchs_cpu_allocator():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


def test_memory_peaks_without_gpu_are_none():
    begin_peak()
    free_cache()
    assert peak_bytes() is None
    assert not torch.cuda.is_initialized()


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
