"""Whole GPUs or cores of a cluster that a run reserves in Ray, so that it uses no others'."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
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
    """Places of a run on a node of a cluster: whole GPUs with their part of its cores, or whole cores.

    Attributes:
        group: Ray's, with a bundle for each place.
        places: number of them.
        cores: of all together.
    """

    group: PlacementGroup
    places: int
    cores: int

    def strategy_at(self, place: int) -> PlacementGroupSchedulingStrategy:
        """Returns Ray's strategy for an actor at a place."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=place)

    def gpu_ids(self) -> tuple[str, ...]:
        """Returns Ray's id of the GPU of each place."""

        def own_gpu() -> str:
            return str(ray.get_gpu_ids()[0])

        asks: Any = ray.remote(num_cpus=0, num_gpus=1)(own_gpu)
        at = map(self.strategy_at, range(self.places))
        return tuple(ray.get([asks.options(scheduling_strategy=strategy).remote() for strategy in at]))


@contextmanager
def reserved_places(node: ClusterNode, on_gpus: bool, wanted: int | None, name: str) -> Iterator[Reservation]:
    """Reserves places on a node for the block, and waits a while for others to free them.

    Args:
        node: of the cluster.
        on_gpus: whether a place is a GPU; else it is a core.
        wanted: number of places; None takes all that are free, at least one.
        name: of the reservation, for Ray's pages.

    Raises:
        UserError: the node has fewer, or others hold them; says who.
    """
    unit, there = ("GPU", node.gpus) if on_gpus else ("CPU", node.cores)
    cores = node.cores // max(there, 1)
    bundle = {unit: 1, **({"CPU": cores} if cores else {})}
    least = wanted or 1
    if least > there:
        raise UserError(
            f"gpus: {least} is more than the {there} {unit}s that Ray counts on {node.address}; set gpus "
            "lower, or see ray start --help"
        )
    ends_s = time.monotonic() + _WAIT_S
    while (made := _try_reserve(node, bundle, wanted, name)) is None:
        if time.monotonic() > ends_s:
            raise UserError(
                f"Ray: of the {there} {unit}s of {node.address}, {least} whole ones were not free within "
                f"{_WAIT_S:g} s ({'; '.join(_holders(node, unit))}); wait for those who hold them, or set "
                "gpus lower"
            )
        time.sleep(_AGAIN_S)
    try:
        yield made
    finally:
        remove_placement_group(made.group)


def _try_reserve(
    node: ClusterNode, bundle: Mapping[str, int], wanted: int | None, name: str
) -> Reservation | None:
    """Returns a reservation; None if too little is free now."""
    available = _STATE.available_resources_per_node().get(node.id, {})
    free = min(int(available.get(unit, 0) // each) for unit, each in bundle.items())
    places = free if wanted is None else wanted
    if not 0 < places <= free:
        return None
    group: PlacementGroup = placement_group(
        [dict(bundle)] * places,
        name=f"{name}/{ray.get_runtime_context().get_job_id()}",
        bundle_label_selector=[{_NODE_LABEL: node.id}] * places,
    )
    if group.wait(_MADE_WITHIN_S):
        return Reservation(group, places, places * bundle.get("CPU", 0))
    # Another was faster, or parts of several GPUs are free instead of a whole one.
    remove_placement_group(group)
    return None


def _holders(node: ClusterNode, unit: str) -> Iterator[str]:
    """Yields who holds GPUs or cores of a node: reservations by name, and jobs whose tasks and actors may."""
    held = Counter[str]()
    for group in placement_group_table().values():
        for place, bundle in group["bundles"].items():
            if group["state"] == "CREATED" and group["bundles_to_node_id"].get(place) == node.id:
                held[group["name"] or group["placement_group_id"]] += int(bundle.get(unit, 0))
    yield from (f"{number} by the reservation {name}" for name, number in held.items() if number)
    own = ray.get_runtime_context().get_job_id()
    for job in _STATE.state.job_table():
        if not job["IsDead"] and job["JobID"] != own:
            command = " ".join(str(job["Entrypoint"]).split()[:_WORDS])
            yield f"job {job['JobID']} runs ({command}, pid {job['DriverPid']} on {job['DriverIPAddress']})"
