"""Tests of recognising out-of-memory errors, and of measuring without a GPU."""

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
def test_what_counts_as_running_out_of_memory(error, out_of_memory):
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
def test_after_which_errors_a_gpu_is_lost_to_its_process(error, lost):
    assert is_gpu_lost(error) is lost


def test_torchs_allocator_on_the_cpu_says_what_we_listen_for():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


def test_a_process_without_a_gpu_measures_nothing():
    begin_peak()
    free_cache()
    assert peak_bytes() is None
    assert not torch.cuda.is_initialized()
