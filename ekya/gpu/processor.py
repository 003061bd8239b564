"""Name and instruction set of the CPU, used as keys of its measurements."""

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

_EXTENSIONS = ("sse4_1", "avx", "avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")
"""Flags of /proc/cpuinfo that decide which kernels libraries use; of x86-64, then of arm64."""

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that restrict libraries to a part of the instruction set."""


def processor_name(cpu_info: Path = CPU_INFO) -> str:
    """Returns the CPU's model name; where it has none, as on arm64, its architecture."""
    return _field("model name", cpu_info) or platform.machine() or "a processor"


def instruction_set(cpu_info: Path = CPU_INFO) -> str:
    """Returns the extensions that matter for speed, and the environment's restrictions.

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
