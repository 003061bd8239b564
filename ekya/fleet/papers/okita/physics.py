"""Physics of Okita's world: a stage is a slot, and all traffic on links is paid for (§III.B).

The text of the constraints (2a) to (2e) is damaged. Our reading, checked in every slot:

- (2a) a site trains the chunks that all sites send to it, and no site sends more than it has left;
- (2b) E_i Σ_r g_i^{rr'}(t) ≤ ρ_i y_i^{r'}(t): workers have time for all epochs of the chunks sent to them;
- (2c) a job has one parameter server while it is active, and none while it is not;
- (2d) workers and parameter servers stay within each resource of each site;
- (2e) t_i is the last active slot: an active job trains some of its remaining data, so a job that is active
  without training, or after its end, breaks it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.policy.okita.ground import ROUNDING
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.physics import Stage


@dataclass(frozen=True, slots=True)
class OkitaPhysics:
    """Okita's physics. To fetch a snapshot takes no time here, as it is much less than a slot."""

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
