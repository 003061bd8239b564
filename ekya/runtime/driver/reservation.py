"""Whole GPUs or cores of a cluster that a run reserves in Ray, so that it uses no others'."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ekya.core.errors import UserError
from ekya.runtime.driver.cluster import ClusterNode

_STATE: Any = state
"""Ray's tables, which are untyped; the public ones need its dashboard."""

_WAIT_S = 15.0
"""Time for others to free what is wanted."""

_MADE_WITHIN_S, _AGAIN_S = 2.0, 0.5

_NODE_LABEL = "ray.io/node-id"

_WORDS = 2
"""Words of another job's command that are told: a later one may be a secret."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Places of a run in a cluster: whole GPUs with their part of a node's cores, or whole cores.

    Attributes:
        group: Ray's, with a bundle for each place.
        nodes: the node of each place; the places of a node follow each other.
        cores: of all together.
    """

    group: PlacementGroup
    nodes: tuple[ClusterNode, ...]
    cores: int

    def strategy_at(self, place: int) -> PlacementGroupSchedulingStrategy:
        """Returns Ray's strategy for an actor at a place."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=place)

    def gpu_ids(self) -> tuple[str, ...]:
        """Returns Ray's id of the GPU of each place."""

        def own_gpu() -> str:
            return str(ray.get_gpu_ids()[0])

        asks: Any = ray.remote(num_cpus=0, num_gpus=1)(own_gpu)
        at = map(self.strategy_at, range(len(self.nodes)))
        return tuple(ray.get([asks.options(scheduling_strategy=strategy).remote() for strategy in at]))


@contextmanager
def reserved_places(
    nodes: Sequence[ClusterNode], on_gpus: bool, wanted: int | None, name: str
) -> Iterator[Reservation]:
    """Reserves places on nodes for the block, and waits a while for others to free them.

    Args:
        nodes: of the cluster. The first has one of the places at least, and as many as are free there.
        on_gpus: whether a place is a GPU; else it is a core.
        wanted: number of places; None takes all that are free, at least one.
        name: of the reservation, for Ray's pages.

    Raises:
        UserError: the nodes have fewer, or others hold them; says who.
    """
    unit, there = "GPU" if on_gpus else "CPU", sum(node.gpus if on_gpus else node.cores for node in nodes)
    where, first = nodes[0].address, ""
    if nodes[1:]:
        where, first = f"{where} and other nodes", f" (one on {where})"
    least = wanted or 1
    if least > there:
        raise UserError(
            f"gpus: {least} is more than the {there} {unit}s that Ray counts on {where}; set gpus lower, or "
            "see ray start --help"
        )
    ends_s = time.monotonic() + _WAIT_S
    while (made := _try_reserve(nodes, unit, wanted, name)) is None:
        if time.monotonic() > ends_s:
            raise UserError(
                f"Ray: of the {there} {unit}s of {where}, {least} whole ones{first} were not free within "
                f"{_WAIT_S:g} s ({'; '.join(_holders(nodes, unit))}); wait for those who hold them, or set "
                "gpus lower"
            )
        time.sleep(_AGAIN_S)
    try:
        yield made
    finally:
        remove_placement_group(made.group)


def _try_reserve(
    nodes: Sequence[ClusterNode], unit: str, wanted: int | None, name: str
) -> Reservation | None:
    """Returns a reservation; None if too little is free now."""
    available = _STATE.available_resources_per_node()
    free: list[tuple[ClusterNode, dict[str, int]]] = []
    for node in nodes:
        bundle = _bundle(node, unit)
        there = available.get(node.id, {})
        free += [(node, bundle)] * min(int(there.get(each, 0) // number) for each, number in bundle.items())
    places = free if wanted is None else free[:wanted]
    if len(places) < (wanted or 1) or places[0][0] != nodes[0]:
        return None
    group: PlacementGroup = placement_group(
        [bundle for _, bundle in places],
        name=f"{name}/{ray.get_runtime_context().get_job_id()}",
        bundle_label_selector=[{_NODE_LABEL: node.id} for node, _ in places],
    )
    if group.wait(_MADE_WITHIN_S):
        cores = sum(bundle.get("CPU", 0) for _, bundle in places)
        return Reservation(group, tuple(node for node, _ in places), cores)
    # Another was faster, or parts of several GPUs are free instead of a whole one.
    remove_placement_group(group)
    return None


def _bundle(node: ClusterNode, unit: str) -> dict[str, int]:
    """Returns what a place has: a core, or a GPU with its part of the node's cores."""
    cores = 1 if unit == "CPU" else node.cores // max(node.gpus, 1)
    return {unit: 1, **({"CPU": cores} if cores else {})}


def _holders(nodes: Sequence[ClusterNode], unit: str) -> Iterator[str]:
    """Yields who holds GPUs or cores of nodes: reservations by name, and jobs whose tasks and actors may."""
    held, ids = Counter[str](), {node.id for node in nodes}
    for group in placement_group_table().values():
        for place, bundle in group["bundles"].items():
            if group["state"] == "CREATED" and group["bundles_to_node_id"].get(place) in ids:
                held[group["name"] or group["placement_group_id"]] += int(bundle.get(unit, 0))
    yield from (f"{number} by the reservation {name}" for name, number in held.items() if number)
    own = ray.get_runtime_context().get_job_id()
    for job in _STATE.state.job_table():
        if not job["IsDead"] and job["JobID"] != own:
            command = " ".join(str(job["Entrypoint"]).split()[:_WORDS])
            yield f"job {job['JobID']} runs ({command}, pid {job['DriverPid']} on {job['DriverIPAddress']})"
