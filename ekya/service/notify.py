"""Tells systemd how the service is (``sd_notify``): a datagram to the socket that it names."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of systemd that are meant for one process, and not for its children."""

_LONGEST_S = 1.0


class Notifier:
    """Sends states to systemd; without it, nothing is sent.

    Args:
        environment: in which systemd names its socket.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket begins with a zero byte, which no variable can hold.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def __call__(self, *states: str) -> None:
        """Sends states, such as ``READY=1``. A supervisor outlives a systemd that does not listen."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_LONGEST_S)
                sender.connect(self._address)
                sender.sendall("\n".join(states).encode())
