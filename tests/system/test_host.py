"""Resources that containers, services and batch jobs leave to a process."""

import os
from types import SimpleNamespace

import psutil
import pytest
from fake_cgroups import FakeCgroups, write_group

from ekya.gpu.backends.cpu import CpuShares
from ekya.system.host import HostMemory, cpu_limit, read_host_memory

GB = 10**9
MACHINE = len(os.sched_getaffinity(0))


@pytest.fixture
def cgroups(tmp_path):
    return FakeCgroups(tmp_path)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("100000 100000", 1.0), ("50000 100000", 0.5), ("max 100000", None), ("", None), ("nonsense", None)],
)
def test_cores_quota_of_version_2_limits(cgroups, text, cores):
    write_group(cgroups.v2(), cpu_max=text)
    assert cgroups.groups.cpu_limit() == cores


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", None), ("", None)])
def test_cores_quota_of_version_1_limits(cgroups, quota, cores):
    write_group(cgroups.v1("cpu"), cpu_cfs_quota_us=quota, cpu_cfs_period_us="100000")
    assert cgroups.groups.cpu_limit() == cores


def test_cores_smallest_quota_of_parent_groups_limits(cgroups):
    mount = cgroups.v2("/user.slice/job/step")
    write_group(mount / "user.slice", cpu_max="max 100000")
    write_group(mount / "user.slice/job", cpu_max="25000 100000")
    write_group(mount / "user.slice/job/step", cpu_max="75000 100000")
    write_group(mount / "user.slice/other", cpu_max="1000 100000")
    assert cgroups.groups.cpu_limit() == 0.25


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/docker/4f", "/docker/4f", "."),  # The host's names, and the container's own group mounted.
        ("/docker/4f/init", "/docker/4f", "init"),
        ("/", "/", "."),  # A separate name space.
        ("/../other", "/", "."),  # A process moved in from outside.
    ],
)
def test_cores_container_group_is_its_root(cgroups, path, root, inside):
    write_group(cgroups.v1("cpu", path, root) / inside, cpu_cfs_quota_us="150000", cpu_cfs_period_us="100000")
    assert cgroups.groups.cpu_limit() == 1.5


def test_cores_both_cgroup_versions_may_be_mounted(cgroups):
    cgroups.v2()
    write_group(cgroups.v1("cpu"), cpu_cfs_quota_us="80000", cpu_cfs_period_us="100000")
    write_group(cgroups.v1("memory"), memory_limit_in_bytes=4 * GB, memory_usage_in_bytes=GB)
    assert cgroups.groups.cpu_limit() == 0.8
    assert cgroups.groups.memory_free_bytes() == 3 * GB


def test_cores_without_groups_are_unlimited(tmp_path, cgroups):
    assert cgroups.groups.cpu_limit() is None
    assert cgroups.groups.memory_free_bytes() is None
    assert cpu_limit(cgroups.groups) == MACHINE


def test_cores_half_a_core_is_half_a_gpu(cgroups):
    write_group(cgroups.v2(), cpu_max="50000 100000")
    assert cpu_limit(cgroups.groups) == 0.5
    capability = CpuShares(cpu_limit(cgroups.groups)).probe_machine()
    assert (capability.usable, capability.capacity_milli) == (True, 500)
    assert capability.why.startswith("0.5 CPU cores")


def test_memory_reclaimable_counts_as_free(cgroups):
    write_group(
        cgroups.v2(),
        memory_max=4 * GB,
        memory_current=3 * GB,
        memory_stat=f"anon {GB}\ninactive_file {2 * GB}",
    )
    assert cgroups.groups.memory_free_bytes() == 3 * GB


def test_memory_of_full_group_is_zero(cgroups):
    write_group(cgroups.v2(), memory_max=GB, memory_current=2 * GB)
    assert cgroups.groups.memory_free_bytes() == 0


@pytest.mark.parametrize("no_limit", ["9223372036854771712", "-1"])
def test_memory_version_1_without_limit_is_ignored(cgroups, no_limit):
    write_group(cgroups.v1("memory"), memory_limit_in_bytes=no_limit, memory_usage_in_bytes=GB)
    assert cgroups.groups.memory_free_bytes() is None


def test_memory_free_is_minimum_of_machine_and_group(cgroups, monkeypatch):
    machine = SimpleNamespace(total=8 * GB, available=2 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert read_host_memory(cgroups.groups) == HostMemory(8 * GB, 2 * GB)
    mount = cgroups.v2("/job")
    write_group(mount, memory_max=3 * GB, memory_current=0)
    assert read_host_memory(cgroups.groups) == HostMemory(8 * GB, 2 * GB)
    write_group(mount / "job", memory_max=GB, memory_current=0)
    assert read_host_memory(cgroups.groups) == HostMemory(8 * GB, GB)
