"""Okita's world: how jobs run, and its workloads (§V.B), drawn from a seed.

Our choices where the paper leaves something open, made before any policy was tuned:

- Jobs arrive in any of the T slots with equal probability ("over a large time span T, I UDL jobs arrive
  randomly").
- A site is one instance; P3, P2 and G3 of all sizes are equally likely. These have no local disks, so each
  has the 500 GB of the testbed's servers. The first site can hold any worker and any parameter server.
- q is drawn once for both directions. D, ρ/E and all counts are integers.
- The paper counts response times from slot a to slot t, the last one; the engine from the beginning of a to
  the end of t, which is one slot more. The functions are shifted by this slot, so that f(t - a) is charged.

A job and a site are the same in a smaller workload of the same seed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.job import Cliff, Growing, Linear, TrainJob, WaitingCost
from ekya.fleet.policy.okita.ground import ROUNDING
from ekya.fleet.policy.places import JobName, Node, NodeName, Places, SiteName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.engine import Stage

RESOURCES = ("gpu", "vcpu", "ram_gb", "disk_gb")

DISK_GB = 500.0
INSTANCES: Mapping[str, tuple[int, int, float]] = {
    "p3.8xlarge": (4, 32, 244.0),
    "p3.16xlarge": (8, 64, 488.0),
    "p2.8xlarge": (8, 32, 488.0),
    "p2.16xlarge": (16, 64, 732.0),
    "g3.16xlarge": (4, 64, 488.0),
    "p3.2xlarge": (1, 8, 61.0),
    "p2.xlarge": (1, 4, 61.0),
    "g3.4xlarge": (1, 16, 122.0),
    "g3.8xlarge": (2, 32, 244.0),
}
"""GPUs, vCPUs and gigabytes of memory of Amazon's instances."""
_HOLD_ANY = 5
"""Number of the first instances that can hold any worker beside any parameter server."""

_NEEDS = ((1, 10), (2, 32), (5, 10))
"""Bounds of what a worker, or a parameter server, needs of the resources after GPUs."""

GROWING, LINEAR, CLIFF = "growing", "linear", "cliff"
"""Latency cost functions; the paper calls them sigmoid, linear and piecewise."""

_OF_SITES, _OF_JOBS = range(2)


@dataclass(frozen=True, slots=True)
class OkitaSetting:
    """Parameters of a workload; the defaults are those of §V.B.

    Attributes:
        sites, jobs, slots: R, I and T.
        slot_s: length of a slot; half an hour in §III.A.
        cost: name of the latency cost function.
    """

    sites: int = 50
    jobs: int = 100
    slots: int = 150
    slot_s: int = 1800
    cost: str = GROWING

    @property
    def slot_us(self) -> int:
        """Length of a slot in microseconds."""
        return self.slot_s * US_PER_S

    @property
    def until_us(self) -> int:
        """End of slot T in microseconds."""
        return self.slots * self.slot_us


@dataclass(frozen=True, slots=True)
class OkitaWorkload:
    """Jobs and places, with one node per site."""

    setting: OkitaSetting
    jobs: tuple[TrainJob, ...]
    places: Places


def simulation(setting: OkitaSetting, seed: int) -> OkitaWorkload:
    """Draws a workload of §V.B."""
    places = draw_places(setting.sites, seed)
    jobs = tuple(_job(setting, seed, index) for index in range(setting.jobs))
    return OkitaWorkload(setting, jobs, places)


def list_sites(count: int) -> list[SiteName]:
    """Returns the names of the first sites."""
    return [SiteName(f"site-{index:03d}") for index in range(count)]


def draw_places(count: int, seed: int) -> Places:
    """Draws the first sites, and the links between them."""
    sites, kinds = list_sites(count), [*INSTANCES]
    nodes: dict[NodeName, Node] = {}
    links: dict[tuple[SiteName, SiteName], float] = {}
    for index, site in enumerate(sites):
        rng = np.random.default_rng([seed, _OF_SITES, index])
        kind = kinds[rng.integers(_HOLD_ANY if index == 0 else len(kinds))]
        gpus, vcpus, ram_gb = INSTANCES[kind]
        capacity = dict(zip(RESOURCES, (float(gpus), float(vcpus), ram_gb, DISK_GB), strict=True))
        nodes[NodeName(site)] = Node(NodeName(site), site, kind, gpus, capacity=capacity)
        for other in sites[:index]:
            links[site, other] = links[other, site] = rng.uniform(2.0, 8.0) / 100.0
    return Places(nodes, links)


def _job(setting: OkitaSetting, seed: int, index: int) -> TrainJob:
    rng = np.random.default_rng([seed, _OF_JOBS, index])
    worker = draw_needs(rng, _NEEDS, int(rng.integers(0, 5)))
    server = draw_needs(rng, _NEEDS)
    # Arguments are drawn in this order.
    return TrainJob(
        JobName(f"job-{index:04d}"),
        int(rng.integers(setting.slots)) * setting.slot_us,
        epochs=int(rng.integers(20, 31)),
        waiting=draw_waiting(setting, rng),
        chunk_mb=rng.uniform(20.0, 60.0),
        model_mb=rng.uniform(30.0, 575.0),
        worker=worker,
        parameter_server=server,
        chunks_per_slot=float(rng.integers(5, 16)),
        chunks={site: int(rng.integers(10, 21)) for site in list_sites(setting.sites)},
    )


def draw_needs(
    rng: np.random.Generator, bounds: Sequence[tuple[int, int]], gpus: int = 0
) -> dict[str, float]:
    """Draws what a worker, or a parameter server, needs of each resource; bounds are of those after GPUs."""
    drawn = (float(rng.integers(low, high + 1)) for low, high in bounds)
    return dict(zip(RESOURCES, (float(gpus), *drawn), strict=True))


def draw_waiting(setting: OkitaSetting, rng: np.random.Generator) -> WaitingCost:
    """Draws f in seconds, shifted by one slot."""
    slot_s = setting.slot_s
    tau = rng.uniform(20.0, 100.0)
    if setting.cost == GROWING:
        return Growing(tau * exp(-0.25), 0.25 / slot_s)
    if setting.cost == LINEAR:
        return Linear(tau / slot_s, rng.uniform(50.0, 200.0) - tau)
    if setting.cost == CLIFF:
        return Cliff(tau, rng.uniform(300.0, 400.0), float((rng.integers(3, 6) + 1) * slot_s))
    raise ValueError(f"there is no latency cost function {setting.cost!r}")


@dataclass(frozen=True, slots=True)
class OkitaPhysics:
    """Okita's physics: a stage is a slot, and all traffic on links is paid for (§III.B).

    To fetch a snapshot takes no time here, as it is much less than a slot. The text of the constraints (2a)
    to (2e) is damaged. Our reading, checked in every slot:

    - (2a) a site trains the chunks that all sites send to it, and no site sends more than it has left;
    - (2b) E_i Σ_r g_i^{rr'}(t) ≤ ρ_i y_i^{r'}(t): workers have time for all epochs of the chunks sent to
      them;
    - (2c) a job has one parameter server while it is active, and none while it is not;
    - (2d) workers and parameter servers stay within each resource of each site;
    - (2e) t_i is the last active slot: an active job trains some of its remaining data, so a job that is
      active without training, or after its end, breaks it.
    """

    slot_us: int

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Returns violations of (2a) to (2e)."""
        faults = [fault for assignment in assignments for fault in _data_faults(view, assignment)]
        return [*faults, *_resource_faults(view, assignments)]

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns one slot, in which the data that is sent is trained for all epochs."""
        job, left = state.job, dict(state.left.chunks)
        moved_mb = cost = 0.0
        for (origin, target), chunks in assignment.moves.items():
            left[origin] -= chunks
            if origin != target:
                moved_mb += job.chunk_mb * chunks
                cost += view.places.mb_cost(origin, target) * job.chunk_mb * chunks
        nodes = view.places.nodes
        if assignment.parameter_server is not None:
            home = nodes[assignment.parameter_server].site
            for part in assignment.parts:
                site = nodes[part.node].site
                if site != home:
                    exchanged_mb = job.model_mb * part.workers
                    moved_mb += exchanged_mb
                    cost += view.places.mb_cost(site, home) * exchanged_mb
        done = not any(left.values())
        return Stage(self.slot_us, None if done else replace(state.left, chunks=left), moved_mb, cost)


def _data_faults(view: FleetView, assignment: JobAssignment) -> Iterator[str]:
    state = view.state(assignment.job)
    job, sent, got = state.job, Counter[SiteName](), Counter[SiteName]()
    for (origin, target), chunks in assignment.moves.items():
        if chunks < 0:
            yield f"(2a) {origin} sends {chunks} chunks of {job.name}"
        sent[origin] += chunks
        got[target] += chunks
    for origin, chunks in sent.items():
        there = state.left.chunks.get(origin, 0)
        if chunks > there:
            yield f"(2a) {origin} sends {chunks} chunks of {job.name} and has {there}"
    trained, room = Counter[SiteName](), defaultdict[SiteName, float](float)
    for part in assignment.parts:
        site = view.places.nodes[part.node].site
        trained[site] += part.chunks
        room[site] += part.workers * job.chunks_per_slot
    for site in sorted({*trained, *got}):
        if trained[site] != got[site]:
            yield f"(2a) {site} trains {trained[site]} chunks of {job.name} and is sent {got[site]}"
    for site, chunks in got.items():
        if chunks > room[site] + ROUNDING:
            told = f"{chunks} chunks and have time for {room[site]:g}"
            yield f"(2b) workers of {job.name} at {site} are sent {told}"
    if assignment.parameter_server is None:
        yield f"(2c) {job.name} is active without a parameter server"
    if not any(chunks > 0 for chunks in sent.values()):
        yield f"(2e) {job.name} is active and trains nothing"


def _resource_faults(view: FleetView, assignments: Sequence[JobAssignment]) -> Iterator[str]:
    used = defaultdict[tuple[NodeName, str], float](float)
    for assignment in assignments:
        job = view.state(assignment.job).job
        for part in assignment.parts:
            for resource, amount in job.worker.items():
                used[part.node, resource] += amount * part.workers
        if assignment.parameter_server is not None:
            for resource, amount in job.parameter_server.items():
                used[assignment.parameter_server, resource] += amount
    for (name, resource), amount in sorted(used.items()):
        there = view.places.nodes[name].capacity.get(resource, 0.0)
        if amount > there + ROUNDING:
            yield f"(2d) {name} has {there:g} {resource}, and {amount:g} are given out"
