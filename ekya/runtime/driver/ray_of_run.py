"""Ray of a run: one of its own on this machine, or a cluster in which it has reserved what it plans with."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import ray
from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.registry import ChosenBackend, Machine, choose_backend
from ekya.gpu.mps.control import VISIBLE_VARIABLE
from ekya.gpu.nvml import list_gpus
from ekya.runtime.driver.cluster import (
    ClusterNode,
    address_to_join,
    joined_cluster,
    measure_ahead_ns,
    require_ekya,
    require_shared,
)
from ekya.runtime.driver.local_ray import object_store_bytes, private_ray
from ekya.runtime.driver.places import Place, PlaceAt, on_this_node
from ekya.runtime.driver.reservation import Reservation, reserved_places
from ekya.system.host import cpu_limit

_TOKEN = "ray get-auth-token prints its token"


@dataclass(frozen=True, slots=True)
class RayOfRun:
    """Ray of a run, and what the run may use.

    Attributes:
        chosen: share backend.
        connect: connects this process to Ray, if it is not yet; returns a note with the dashboard's address.
        place_at: where actors are.
        nodes: of a cluster, that of each place.
    """

    chosen: ChosenBackend
    connect: Callable[[], str]
    place_at: PlaceAt = on_this_node
    nodes: tuple[ClusterNode, ...] = ()


def settle_address(options: RunOptions) -> RunOptions:
    """Returns the options with the cluster to join, and then with folders that its processes find."""
    address = address_to_join(options.address)
    if address is None:
        return options
    resume = None if options.resume is None else options.resume.resolve()
    return replace(options, address=address, runs=options.runs.resolve(), resume=resume)


@contextmanager
def opened_ray(fleet: FleetConfig, options: RunOptions, console: Console) -> Iterator[RayOfRun]:
    """Yields the Ray of a run: in a cluster joined, with what is reserved; else yet to be started.

    Args:
        fleet: to run.
        options: of the run, from ``settle_address``.
        console: for messages.

    Raises:
        UserError: no share backend works here, the cluster cannot be joined, or has too little.
    """
    try:
        chosen = choose_backend(options.shares)
        if options.address is None:
            yield RayOfRun(chosen, partial(start_ray, options.dashboard, chosen))
            return
        name = f"ekya/{options.name or fleet.name}"
        console.print(f"Joining the Ray cluster at {options.address}", highlight=False, markup=False)
        with joined_cluster(options.address, name) as (nodes, url):
            # The memory and the MPS of a GPU are known on its own machine alone.
            used = nodes[:1] if chosen.on_gpus else nodes
            wanted = -(-fleet.capacity_milli // FULL_GPU_MILLI) if fleet.is_set("gpus") else None
            with (
                reserved_places(used, chosen.on_gpus, wanted, name) as reserved,
                _only_gpus(reserved.gpu_ids() if chosen.on_gpus else None),
            ):
                places = _find_places(reserved, nodes[0], options.resume or options.runs)
                elsewhere = sum(bool(place.node) for place in places)
                cores = min(reserved.cores - elsewhere, cpu_limit()) + elsewhere
                note = f"dashboard: {url} ({_TOKEN})" if url else ""
                chosen = choose_backend(options.shares, Machine(cores, list_gpus()))
                yield RayOfRun(chosen, lambda: note, places.__getitem__, reserved.nodes)
    finally:
        ray.shutdown()


def _find_places(reserved: Reservation, here: ClusterNode, folder: Path) -> tuple[Place, ...]:
    """Returns the places of a reservation, whose nodes have Ekya and the folder of the run.

    Raises:
        UserError: one has not.
    """
    by_node = {here: Place()}
    for node in reserved.nodes:
        if node not in by_node:
            require_ekya(node)
            require_shared(folder, node)
            by_node[node] = Place(node=node.id, ahead_ns=measure_ahead_ns(node))
    return tuple(
        replace(by_node[node], strategy=reserved.strategy_at(place))
        for place, node in enumerate(reserved.nodes)
    )


@contextmanager
def _only_gpus(ids: Sequence[str] | None) -> Iterator[None]:
    """Hides other GPUs from this process and its children during a block; None changes nothing."""
    before = os.environ.get(VISIBLE_VARIABLE)
    if ids is not None:
        os.environ[VISIBLE_VARIABLE] = ",".join(ids)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VISIBLE_VARIABLE, None)
        else:
            os.environ[VISIBLE_VARIABLE] = before


def start_ray(dashboard: bool, chosen: ChosenBackend) -> str:
    """Starts Ray here with the GPUs for actors, and returns a note with the dashboard's address."""
    with private_ray():
        context = ray.init(
            # A separate instance, not one that is already running on this machine.
            address="local",
            num_gpus=chosen.gpus,
            # Ray starts an idle process for each CPU, and actors request none.
            num_cpus=1,
            include_dashboard=dashboard,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=object_store_bytes(),
            configure_logging=True,
        )
    url = str(context.dashboard_url or "")
    return f"dashboard: http://{url} ({_TOKEN})" if url else ""
