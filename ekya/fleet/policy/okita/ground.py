"""Sites and jobs as arrays: R sites in the order of their names, K resources, one node per site."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.policy.view import FleetView, JobState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
GPU = "gpu"
MB_OF_TABLE = 100.0
"""Megabytes to which the costs in §V.B's table refer."""
ROUNDING = 1e-9
"""Tolerance for rounding errors, in parts of a worker or a resource."""


@dataclass(frozen=True, eq=False)
class Ground:
    """Sites, with one node each.

    Attributes:
        nodes: node of each site.
        resources: names, of all that nodes have or jobs need.
        capacity: C_r^k, R x K.
        mb_cost: q^{rr'}, R x R, from the row's site to the column's.
    """

    sites: tuple[SiteName, ...]
    nodes: tuple[NodeName, ...]
    resources: tuple[str, ...]
    capacity: Floats
    mb_cost: Floats

    @classmethod
    def from_view(cls, view: FleetView) -> "Ground":
        """Returns all sites; no data lies elsewhere.

        Raises:
            ValueError: a site has several nodes.
        """
        at = {node.site: node for node in view.places.nodes.values()}
        if len(at) != len(view.places.nodes):
            raise ValueError("Okita's sites have one node each")
        sites = tuple(sorted(at))
        needs = (one for state in view.jobs for one in (state.job.worker, state.job.parameter_server))
        # What no node has is needed all the same: such a job has room nowhere.
        resources = tuple(sorted({*(name for node in at.values() for name in node.capacity), *chain(*needs)}))
        index = {site: place for place, site in enumerate(sites)}
        mb_cost = np.zeros((len(sites), len(sites)))
        cost_of = view.places.link_cost.get
        for origin, row in index.items():
            mb_cost[row] = [cost_of((origin, target), 0.0) for target in sites]
        np.fill_diagonal(mb_cost, 0.0)
        capacity = np.array(
            [[at[site].capacity.get(name, 0.0) for name in resources] for site in sites]
        ).reshape(len(sites), len(resources))
        return cls(sites, tuple(at[site].name for site in sites), resources, capacity, mb_cost)

    @cached_property
    def nearest(self) -> Ints:
        """For each site all sites by the cost of a link from them, cheapest first; R x R."""
        return np.argsort(self.mb_cost, axis=0, kind="stable").T.copy()

    @cached_property
    def cheapest_link(self) -> Floats:
        """For each site the cost of a megabyte from the nearest other site; R, which must be 2 or more."""
        return np.asarray((self.mb_cost + np.diag(np.full(len(self.sites), np.inf))).min(axis=0))

    @cached_property
    def link_mean(self) -> Floats:
        """Σ_{r'} q^{rr'} / (R - 1) for 100 MB, the unit of §V.B's table; R."""
        return np.asarray(self.mb_cost.sum(axis=1) * MB_OF_TABLE / max(1, len(self.sites) - 1))


@dataclass(frozen=True, eq=False)
class OkitaTask:
    """A job as arrays.

    Attributes:
        worker, parameter_server: m_i^k and n_i^k; K.
        left: M_i^r(t); R.
        chunks: D_i^r; R.
        now_us, slot_us: beginning and length of the slot.
    """

    state: JobState
    worker: Floats
    parameter_server: Floats
    left: Ints
    chunks: Ints
    now_us: int
    slot_us: int

    @classmethod
    def from_state(cls, ground: Ground, state: JobState, now_us: int, slot_us: int) -> "OkitaTask":
        """Converts a job of the view."""
        job = state.job
        worker, parameter_server = (
            np.array([needs.get(name, 0.0) for name in ground.resources])
            for needs in (job.worker, job.parameter_server)
        )
        left, chunks = (
            np.array([by_site.get(site, 0) for site in ground.sites], dtype=np.int64)
            for by_site in (state.left.chunks, job.chunks)
        )
        return cls(state, worker, parameter_server, left, chunks, now_us, slot_us)

    @property
    def job(self) -> TrainJob:
        """The job."""
        return self.state.job

    @cached_property
    def total(self) -> int:
        """M_i(t)."""
        return int(self.left.sum())

    @property
    def waited(self) -> float:
        """t - a_i, in slots."""
        return (self.now_us - self.job.arrives_us) / self.slot_us

    def workers_at_most(self) -> int:
        """Returns ⌈E_i M_i / ρ_i⌉, the number of workers that train everything in one slot."""
        return int(np.ceil(self.total / self.job.chunks_per_slot - ROUNDING))

    def slots_needed(self, workers: Ints) -> Ints:
        """Returns l_i = ⌈E_i M_i / (ρ_i N)⌉."""
        slots = np.ceil(self.total / (self.job.chunks_per_slot * workers) - ROUNDING)
        return np.asarray(slots, dtype=np.int64)

    def can_train(self, workers: Ints) -> Ints:
        """Returns the chunks that a number of workers takes through all epochs in a slot."""
        return np.asarray(np.floor(self.job.chunks_per_slot * workers + ROUNDING), dtype=np.int64)

    def waiting_cost(self, slots: float) -> float:
        """Returns f_i if the job ends after a number of slots from now on."""
        ends_us = self.now_us + slots * self.slot_us
        return self.job.waiting.cost_after((ends_us - self.job.arrives_us) / US_PER_S)

    def resources_taken(self, workers: Ints, parameter_server: int) -> Floats:
        """Returns the resources that a deployment takes; R x K."""
        taken = np.outer(workers, self.worker)
        taken[parameter_server] += self.parameter_server
        return taken


def slot_of(view: FleetView, slot_us: int) -> tuple[Ground, list[OkitaTask]]:
    """Converts a view at the beginning of a slot."""
    ground = Ground.from_view(view)
    return ground, [OkitaTask.from_state(ground, state, view.now_us, slot_us) for state in view.jobs]


def first_of(held: Ints, count: Ints | int) -> Ints:
    """Returns the first ``count`` of what the entries of the last axis hold; all where they hold fewer."""
    before = np.cumsum(held, axis=-1) - held
    return np.asarray(np.minimum(np.maximum(count - before, 0), held))


def fits(free: Floats, taken: Floats) -> bool:
    """Returns whether all needed resources are free."""
    return bool((taken <= free + ROUNDING).all())


def room(free: Floats, task: OkitaTask) -> Ints:
    """Returns A_i^r, the workers that fit on each site; R, negative where a resource is overbooked."""
    asked = task.worker > 0
    if not asked.any():
        return np.full(len(free), np.iinfo(np.int32).max, dtype=np.int64)
    whole = np.floor(free[:, asked] / task.worker[asked] + ROUNDING)
    return np.asarray(whole.min(axis=1), dtype=np.int64)


def room_beside(free: Floats, task: OkitaTask) -> Ints:
    """Returns A_i^r beside the parameter server; negative where the parameter server does not fit."""
    left = free - task.parameter_server
    fits_there = (left >= -ROUNDING).all(axis=1)
    return np.where(fits_there, room(np.maximum(left, 0.0), task), -1)


def as_assignment(
    ground: Ground, task: OkitaTask, workers: Ints, parameter_server: int, moves: Ints, reason: str
) -> JobAssignment:
    """Converts a deployment to an assignment.

    Args:
        workers: y; R.
        parameter_server: index of the parameter server's site.
        moves: g, R x R, from the row's site to the column's.
    """
    gpus = task.job.worker.get(GPU, 0.0)
    trained = moves.sum(axis=0)
    parts = []
    for place in np.flatnonzero(workers):
        count = int(workers[place])
        parts.append(NodePart(ground.nodes[place], int(gpus * count), count, int(trained[place])))
    sent = {
        (ground.sites[origin], ground.sites[target]): int(moves[origin, target])
        for origin, target in np.argwhere(moves)
    }
    return JobAssignment(task.job.name, tuple(parts), reason, ground.nodes[parameter_server], sent)
