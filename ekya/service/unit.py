"""The systemd unit of a service."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.service.supervisor import BAD_INPUT, Patience

_UNIT = """\
# Save as /etc/systemd/system/{unit}.service, then: systemctl daemon-reload && systemctl enable --now {unit}
[Unit]
Description=Ekya: continuous learning for the cameras of {name}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
WorkingDirectory={working_directory}
User={user}
# Passwords of cameras and brokers, NAME=VALUE a line, readable by root alone. The dash: it may be missing.
EnvironmentFile=-/etc/ekya/{unit}.env
Environment=PYTHONUNBUFFERED=1

# The supervisor starts a dead service itself; systemd does the same for the supervisor.
Restart=always
RestartSec=2
RestartPreventExitStatus={bad_input}
TimeoutStartSec={start_s}
TimeoutStopSec={stop_s}
WatchdogSec=60
KillMode=mixed
# A process that the kernel kills for memory is started again by the supervisor, or by Ray.
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=65536

# Devices are left open for GPUs and cameras; /dev/video0 needs SupplementaryGroups=video.
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={writable}
CacheDirectory=ekya
Environment=HOME=%C/ekya
PrivateTmp=yes
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """What a unit says of a service.

    Attributes:
        name: of the service.
        argv: its command line, which begins with an absolute path.
        user: who runs it.
        working_directory: against which the paths on the command line are resolved.
        runs: folder of all runs, which it writes.
        stop_s: that the supervisor gives the service to stop.
    """

    name: str
    argv: Sequence[str]
    user: str
    working_directory: Path
    runs: Path
    stop_s: float = Patience().stop_s

    def unit_text(self) -> str:
        """Returns the unit, to be saved as ``ekya-NAME.service``.

        Raises:
            UserError: a value cannot stand in a unit.
        """
        patience = Patience()
        for value in (*self.argv, self.user, str(self.working_directory), str(self.runs)):
            if "\n" in value:
                raise UserError(f"{value!r}: a line break cannot stand in a unit; choose another name")
        return _UNIT.format(
            unit=f"ekya-{self.name}",
            name=_escaped(self.name),
            command=" ".join(map(_quoted, self.argv)),
            working_directory=_escaped(str(self.working_directory.resolve())),
            user=_escaped(self.user),
            bad_input=BAD_INPUT,
            start_s=round(patience.start_s + patience.stop_s),
            # After its own limit the supervisor ends what is left, which takes some seconds.
            stop_s=round(self.stop_s + patience.leftover_s + 15),
            writable=_quoted(str(self.runs.resolve())),
        )


def _escaped(text: str) -> str:
    """Returns a text in which systemd sees no specifier."""
    return text.replace("%", "%%")


def _quoted(argument: str) -> str:
    """Returns an argument as systemd reads it: $ and % are its own, and only some quotes are as a shell's."""
    text = _escaped(argument).replace("\\", "\\\\").replace("$", "$$")
    plain = shlex.quote(argument) == argument
    return text if plain else '"' + text.replace('"', '\\"') + '"'
