"""The processor's name and instruction set, as measurements of it are kept under."""

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

_EXTENSIONS = ("sse4_1", "avx", "avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")
"""Flags of /proc/cpuinfo that decide which kernels libraries take; of x86-64, then of arm64."""

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that hold libraries to less than the processor has."""


def processor_name(cpu_info: Path = CPU_INFO) -> str:
    """The maker's name of the processor; of one that has none, as of arm64, its architecture."""
    return _field("model name", cpu_info) or platform.machine() or "a processor"


def instruction_set(cpu_info: Path = CPU_INFO) -> str:
    """The extensions that matter for speed, and what the environment holds libraries to.

    For example ``x86_64 sse4_1 avx avx2, ONEDNN_MAX_CPU_ISA=AVX2``.
    """
    flags = (_field("flags", cpu_info) or _field("Features", cpu_info)).split()
    there = [platform.machine(), *(name for name in _EXTENSIONS if name in flags)]
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return ", ".join([" ".join(there), *limits])


def _field(name: str, cpu_info: Path) -> str:
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name)
    return next(values, "")
