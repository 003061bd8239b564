"""CPU, cores and memory that this process may use, within the limits of its cgroups (version 1 and 2).

And memory that it returns to the operating system, or excludes from garbage collection.
"""

import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_V2 = "cgroup2"
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 reports "no limit" as a very large number."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The groups of this process.

    Attributes:
        proc: this process's folder in /proc.
    """

    proc: Path = Path("/proc/self")

    def cpu_limit(self) -> float | None:
        """Returns the cores (possibly a fraction) that the groups allow; None without a limit."""
        quotas = (_quota(group) for group in self._groups("cpu"))
        return min((quota for quota in quotas if quota is not None), default=None)

    def memory_free_bytes(self) -> int | None:
        """Returns memory left in the groups, reclaimable page cache included; None without a limit."""
        left = (_memory_left(group) for group in self._groups("memory"))
        return min((one for one in left if one is not None), default=None)

    def _groups(self, controller: str) -> Iterator[Path]:
        """Yields the folders of the process's groups and their ancestors, as far as they are mounted here."""
        paths = self._paths(controller)
        for mount, root, kind in self._mounts(controller):
            path = paths.get(kind)
            if path is None:
                continue
            # In a container the mount's root is its own group, while the path may be the one outside.
            below = os.path.relpath(path, root)
            inside = Path() if below.startswith("..") else Path(below)
            yield mount
            yield from (mount / one for one in (inside, *inside.parents) if one != Path())

    def _paths(self, controller: str) -> dict[str, str]:
        """Returns the process's groups by type of the file system that shows them."""
        paths = {}
        for line in _lines(self.proc / "cgroup"):
            number, controllers, path = line.split(":", 2)
            # Version 2 has the number 0 and names no controllers.
            if number == "0":
                paths[_V2] = path
            elif controller in controllers.split(","):
                paths["cgroup"] = path
        return paths

    def _mounts(self, controller: str) -> Iterator[tuple[Path, str, str]]:
        """Yields mounts of groups: the folder, the group that it shows, and the type of file system."""
        for line in _lines(self.proc / "mountinfo"):
            place, _, filesystem = line.partition(" - ")
            root, folder = place.split()[3:5]
            kind, _, options = filesystem.split(maxsplit=2)
            if kind == _V2 or (kind == "cgroup" and controller in options.split(",")):
                yield Path(folder), root, kind


def _quota(group: Path) -> float | None:
    v2 = _words(group / "cpu.max")
    quota, period = (
        v2 if len(v2) == 2 else (_word(group / "cpu.cfs_quota_us"), _word(group / "cpu.cfs_period_us"))
    )
    if not (quota.isdigit() and period.isdigit() and int(period)):  # "max", -1, or no such file
        return None
    return int(quota) / int(period)


def _memory_left(group: Path) -> int | None:
    for limit_file, used_file, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _word(group / limit_file), _word(group / used_file)
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            memory_stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat"))
            # The kernel reclaims inactive page cache before it enforces the limit.
            kept = int(used or 0) - int(memory_stat.get(cache, 0))
            return max(0, int(limit) - max(0, kept))
    return None


def _word(path: Path) -> str:
    return (_words(path) or [""])[0]


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path)[:1] for word in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def cpu_limit(cgroups: Cgroups | None = None) -> float:
    """Returns the cores (possibly a fraction) that the affinity mask and cgroup quotas leave this process.

    Args:
        cgroups: groups of this process; by default read from the kernel.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota = (cgroups or Cgroups()).cpu_limit()
    return cores if quota is None else min(cores, quota)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the machine.

    Attributes:
        total_bytes: total memory.
        free_bytes: memory still available; cgroups may leave less than the machine has.
    """

    total_bytes: int
    free_bytes: int


def read_host_memory(cgroups: Cgroups | None = None) -> HostMemory:
    """Returns the memory now.

    Args:
        cgroups: groups of this process; by default read from the kernel.
    """
    memory, left = psutil.virtual_memory(), (cgroups or Cgroups()).memory_free_bytes()
    return HostMemory(memory.total, memory.available if left is None else min(memory.available, left))


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


def give_back_freed() -> None:
    """Calls ``malloc_trim`` if the C library has it.

    glibc keeps freed blocks of a few megabytes (kernels, activations) for later allocations: without this a
    process that trained a dozen models stays at its peak size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_loaded() -> None:
    """Freezes everything that is loaded so far, for the lifetime of this process.

    When an object store fills, Ray has every process of the cluster collect at the same time. Each would
    traverse the hundreds of thousands of objects of torch and Ray, and until two dozen processes have, a
    small machine's cameras skip all their frames.
    """
    # First: garbage that is frozen is never freed.
    gc.collect()
    gc.freeze()


@contextmanager
def loaded_frozen() -> Iterator[None]:
    """Does ``freeze_loaded`` around a run, and unfreezes after it so that libraries are freed at exit."""
    freeze_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
