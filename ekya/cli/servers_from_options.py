"""The servers that a command's options name, checked and fitted to the machines on which they run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ekya.api.runnable import require_credentials, require_world
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI

if TYPE_CHECKING:
    from ekya.fleet.servers_file import ServerConfig, Servers
    from ekya.planning.sizing.fleet_sizes import MachineSize


def read_all_servers(path: Path, changes: Mapping[str, object]) -> "Servers":
    """Reads all servers, for a run on virtual time."""
    from ekya.fleet.servers_file import load_servers

    servers = load_servers(path, changes)
    _require_each(servers, live=False)
    return replace(servers, servers=tuple(_fitted(server) for server in servers.servers))


def read_servers_here(path: Path, changes: Mapping[str, object], shares: str) -> "Servers":
    """Reads all servers, which run on this machine and share it.

    Raises:
        UserError: together they need more than there is.
    """
    from ekya.fleet.servers_file import load_servers

    servers = load_servers(path, changes)
    _require_each(servers, live=True)
    part = _part_of_machine(shares, len(servers.servers))
    servers = replace(servers, servers=tuple(_with_gpus(server, part) for server in servers.servers))
    _require_room_for_all(servers, shares)
    return servers


def _require_each(servers: "Servers", *, live: bool) -> None:
    from ekya.planning.schedulers.registry import make_scheduler

    for server in servers.servers:
        scheduler = server.fleet.scheduler
        require_world(server.fleet, scheduler, live=live)
        if live:
            require_credentials(server.fleet)
        needs = make_scheduler(scheduler).needs
        if needs.elsewhere or needs.kept_models:
            raise UserError(
                f"scheduler: {scheduler} brings weights that are not trained on its own GPUs, and among "
                "several servers that is what the tier is for; choose another scheduler, such as ekya"
            )


def _part_of_machine(shares: str, servers: int) -> "MachineSize":
    from ekya.gpu.backends.registry import choose_backend
    from ekya.planning.sizing.fleet_sizes import MachineSize

    there = choose_backend(shares).capability
    on_cores, all_milli = there.device != "cuda", there.capacity_milli
    if servers > 1 and not on_cores:
        all_milli = min(all_milli, FULL_GPU_MILLI)  # All begin with the first GPU.
    return MachineSize(all_milli // servers, on_cores)


def _fitted(server: "ServerConfig") -> "ServerConfig":
    """Chooses the open sizes of a fleet that runs on virtual time."""
    from ekya.pipeline.costs import fitted_by_card

    fleet, _ = fitted_by_card(server.fleet.with_preset(server.fleet.scheduler))
    return replace(server, fleet=fleet)


def _with_gpus(server: "ServerConfig", part: "MachineSize") -> "ServerConfig":
    """Gives this part of a machine to a fleet without ``gpus``.

    Its other sizes are chosen when its run opens, by what the machine really takes for its work.
    """
    from ekya.pipeline.costs import fitted_by_card

    fleet = server.fleet.with_preset(server.fleet.scheduler)
    if not fleet.is_set("gpus"):
        gpus = fitted_by_card(fleet, part, overload=True)[0].gpus
        fleet = fleet.model_copy(update={"gpus": gpus})
    return replace(server, fleet=fleet)


def _require_room_for_all(servers: "Servers", shares: str) -> None:
    """Refuses servers that together need more capacity than this machine has."""
    from ekya.gpu.backends.registry import choose_backend

    there = choose_backend(shares).capability
    wanted = sum(server.fleet.capacity_milli for server in servers.servers)
    if wanted > there.capacity_milli:
        raise UserError(
            f"gpus: {wanted / FULL_GPU_MILLI:g}, of all servers here, is more than the "
            f"{there.capacity_milli / FULL_GPU_MILLI:g} that are here ({there.why}); set less in their "
            "`changes`, or let some be ekya serve --lend on other machines"
        )
    # Cores are one pool. Of GPUs, every server takes the first ones, even if other servers use them.
    first_milli = sum(min(server.fleet.capacity_milli, FULL_GPU_MILLI) for server in servers.servers)
    if there.device == "cuda" and first_milli > FULL_GPU_MILLI:
        raise UserError(
            "gpus: every server would begin with this machine's first GPU, and they ask for "
            f"{first_milli / FULL_GPU_MILLI:g} of it; give them less, or use --shares cpu"
        )
