"""Network namespaces as hosts: made with a TUN device each, and taken down with all their processes."""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from waiting import wait_until

SUBNET = bytes((10, 77, 0))
"""The first three bytes of every host's address; the last is its number."""

TUN = Path("/dev/net/tun")
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def address(host):
    """Returns the address of a host."""
    return ".".join(map(str, (*SUBNET, host)))


def why_not():
    """Returns why this machine cannot have hosts, or None."""
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root may make"
    if shutil.which("ip") is None:
        return "hosts need the program ip (Debian's iproute2)"
    name = f"ekya-{os.getpid()}-try"
    try:
        os.close(_open_tun(f"e{os.getpid()}-try"))
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except OSError as error:
        return f"hosts need {TUN} and network namespaces: {error}"
    return None


def make(name, host):
    """Makes a host and returns the descriptor of its network device, a TUN: each read or write is a packet.

    The device is gone when the descriptor is closed.
    """
    device = f"e{os.getpid()}-{host}"
    tun = _open_tun(device)
    try:
        _ip("netns", "add", name)
        # A TUN may be moved; made here, it needs no thread inside the namespace.
        _ip("link", "set", device, "netns", name, "name", "wan")
        _ip("-n", name, "address", "add", f"{address(host)}/24", "dev", "wan")
        _ip("-n", name, "link", "set", "wan", "mtu", "1500", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # Some machines have BBR, which ignores losses. Most have cubic, which may not be chosen here, and
        # which behaves as reno over a lossy link.
        _ip("netns", "exec", name, "sh", "-c", f"echo reno >{CONGESTION_CONTROL}")
    except BaseException:
        os.close(tun)
        raise
    return tun


def kill_all(name):
    """Kills all processes of a host, those that were started meanwhile too, and waits until they are gone."""

    def gone():
        pids = processes(name)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(gone, f"processes of host {name} do not die")


def processes(name):
    """Returns the processes of a host; a zombie is in no host."""
    return [int(pid) for pid in _ip("netns", "pids", name).split()]


def remove(name):
    """Kills a host's processes and deletes it; one that is not there is no error."""
    if name in names():
        kill_all(name)
        _ip("netns", "del", name)


def names():
    """Returns the names of all network namespaces of this machine."""
    return [line.split()[0] for line in _ip("netns", "list").splitlines()]


def _open_tun(device):
    tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun


def _ip(*words):
    ended = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if ended.returncode:
        raise OSError(f"ip {' '.join(words)}: {ended.stderr.strip()}")
    return ended.stdout
