"""Physics of Okita's world: a stage is a slot, and all traffic on links is paid for (§III.B).

The text of the constraints (2a) to (2e) is damaged. Our reading, checked in every slot:

- (2a) a site trains the chunks that all sites send to it, and no site sends more than it has left;
- (2b) E_i Σ_r g_i^{rr'}(t) ≤ ρ_i y_i^{r'}(t): workers have time for all epochs of the chunks sent to them;
- (2c) a job has one parameter server while it is active, and none while it is not;
- (2d) workers and parameter servers stay within each resource of each site;
- (2e) t_i is the last active slot: an active job trains some of its remaining data, so a job that is active
  without training, or after its end, breaks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.physics import Stage

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class OkitaPhysics:
    """Okita's physics.

    Attributes:
        slot_us: length of a slot.
    """

    slot_us: int

    def faults(self, view: FleetView, assignments: Sequence[Assignment]) -> list[str]:
        """Returns violations of (2a) to (2e)."""
        states = {state.job.name: state for state in view.jobs}
        faults = []
        for assignment in assignments:
            state = states.get(assignment.job)
            if state is not None:
                faults += _data_faults(view, state, assignment)
        return faults + _resource_faults(view, assignments)

    def stage(
        self, view: FleetView, state: JobState, assignment: Assignment, others: Sequence[Assignment]
    ) -> Stage:
        """Returns one slot, in which the data that is sent is trained for all epochs."""
        del others
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

    def resume_us(self, view: FleetView, state: JobState, assignment: Assignment) -> int:
        """Returns 0: fetching a snapshot takes much less than a slot."""
        del view, state, assignment
        return 0


def _data_faults(view: FleetView, state: JobState, assignment: Assignment) -> list[str]:
    job, faults = state.job, []
    sent: dict[SiteName, int] = {}
    got: dict[SiteName, int] = {}
    for (origin, target), chunks in assignment.moves.items():
        if chunks < 0:
            faults.append(f"(2a) {origin} sends {chunks} chunks of {job.name}")
        sent[origin] = sent.get(origin, 0) + chunks
        got[target] = got.get(target, 0) + chunks
    for origin, chunks in sent.items():
        there = state.left.chunks.get(origin, 0)
        if chunks > there:
            faults.append(f"(2a) {origin} sends {chunks} chunks of {job.name} and has {there}")
    trained: dict[SiteName, int] = {}
    room: dict[SiteName, float] = {}
    for part in assignment.parts:
        node = view.places.nodes.get(part.node)
        if node is not None:
            trained[node.site] = trained.get(node.site, 0) + part.chunks
            room[node.site] = room.get(node.site, 0.0) + part.workers * job.chunks_per_slot
    for site in sorted({*trained, *got}):
        if trained.get(site, 0) != got.get(site, 0):
            told = f"{site} trains {trained.get(site, 0)} chunks of {job.name}"
            faults.append(f"(2a) {told} and is sent {got.get(site, 0)}")
    for site, chunks in got.items():
        if chunks > room.get(site, 0.0) + _ROUNDING:
            faults.append(
                f"(2b) workers of {job.name} at {site} are sent {chunks} chunks "
                f"and have time for {room.get(site, 0.0):g}"
            )
    if assignment.parameter_server is None:
        faults.append(f"(2c) {job.name} is active without a parameter server")
    if not any(chunks > 0 for chunks in sent.values()):
        faults.append(f"(2e) {job.name} is active and trains nothing")
    return faults


def _resource_faults(view: FleetView, assignments: Sequence[Assignment]) -> list[str]:
    jobs = {state.job.name: state.job for state in view.jobs}
    used: dict[tuple[NodeName, str], float] = {}
    for assignment in assignments:
        job = jobs.get(assignment.job)
        if job is None:
            continue
        for part in assignment.parts:
            for resource, amount in job.worker.items():
                key = part.node, resource
                used[key] = used.get(key, 0.0) + amount * part.workers
        if assignment.parameter_server is not None:
            for resource, amount in job.parameter_server.items():
                key = assignment.parameter_server, resource
                used[key] = used.get(key, 0.0) + amount
    faults = []
    for (name, resource), amount in sorted(used.items()):
        node = view.places.nodes.get(name)
        there = 0.0 if node is None else node.capacity.get(resource, 0.0)
        if amount > there + _ROUNDING:
            faults.append(f"(2d) {name} has {there:g} {resource}, and {amount:g} are given out")
    return faults
