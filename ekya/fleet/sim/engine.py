"""Simulator of a fleet on virtual time: arrivals, placement by a policy, and costs.

A stage is the work between two snapshots of a job; an interrupted job repeats its stage, except for the part
that the physics keeps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.places import JobName, NodeName, Places
from ekya.fleet.policy.view import FleetPolicy, FleetView, JobState
from ekya.fleet.sim.outcome import FleetOutcome, JobRecord


@dataclass(frozen=True, slots=True)
class Kept:
    """What the interruption of a stage leaves.

    Attributes:
        left: remaining work of the job at its last snapshot.
        lost_us: work since that snapshot.
    """

    left: Left
    lost_us: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a running job between two snapshots.

    Attributes:
        left: remaining work of the job at its end; None where the job is done.
        moved_mb: traffic over links between sites, charged at its beginning.
        link_cost: of that traffic.
        kept: state after an interruption, from the microseconds worked, for stages with snapshots in between;
            None: an interruption loses the whole stage.
        late_apps: background applications that miss their deadline during the stage.
        resume_us: time to fetch the snapshot where this is the first stage after a move or a pause.
    """

    takes_us: int
    left: Left | None
    moved_mb: float = 0.0
    link_cost: float = 0.0
    kept: Callable[[int], Kept] | None = None
    late_apps: int = 0
    resume_us: int = 0


class Physics(Protocol):
    """Times, costs and constraints of one world."""

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Returns the constraints that the assignments break together; empty where they keep all."""

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns the next stage of a job under its assignment, beside those of other jobs."""


IDLE_CALLS = 1000
"""Calls in a row while no job runs and nothing is to come, after which no further call will start one."""


class BrokenConstraintError(Exception):
    """A policy's decision breaks a constraint of its world."""


@dataclass(slots=True, eq=False)
class _Present:
    """A job that has arrived: its remaining work, and its present stage.

    ``resumes`` is set where it has to fetch its last snapshot before its next stage.
    """

    job: TrainJob
    left: Left
    assignment: JobAssignment | None = None
    stage: Stage | None = None
    began_us: int = 0
    ends_us: int = 0
    resumes: bool = False

    def interrupted(self, now_us: int) -> Kept:
        """Returns what an interruption at this time would leave of its stage."""
        if self.stage is None:
            return Kept(self.left, 0)
        passed_us = now_us - self.began_us
        if self.stage.kept is None:
            return Kept(self.left, passed_us)
        fetching_us = self.ends_us - self.stage.takes_us - self.began_us
        kept = self.stage.kept(max(0, passed_us - fetching_us))
        return Kept(kept.left, kept.lost_us + min(passed_us, fetching_us))

    def state(self, now_us: int) -> JobState:
        left = self.interrupted(now_us).left
        return JobState(self.job, left, self.assignment)


class FleetEngine:
    """One simulation.

    Args:
        jobs: all of them, in any order.
        timer: host clock in seconds, to measure decisions; it does not affect the simulation.

    Raises:
        ValueError: the policy would never be called.
    """

    def __init__(
        self,
        policy: FleetPolicy,
        physics: Physics,
        jobs: Iterable[TrainJob],
        places: Places,
        seed: int = 0,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        if not policy.on_events and policy.every_us is None:
            raise ValueError(f"{policy.name} is called neither on events nor periodically")
        self._policy, self._physics = policy, physics
        self._places, self._seed, self._timer = places, seed, timer
        self._to_come = sorted(jobs, key=lambda job: (job.arrives_us, job.name))
        self._present: dict[JobName, _Present] = {}
        self._records = {job.name: JobRecord(job) for job in self._to_come}
        self._energy_j = dict.fromkeys(places.nodes, 0.0)
        self._decide_s: list[float] = []
        self._now_us, self._idle_calls = 0, 0

    def run(self) -> FleetOutcome:
        """Runs until every job is done, or no event and no further start is to come.

        Raises:
            BrokenConstraintError: a decision breaks a constraint of its world; the message names it.
        """
        while self._to_come or self._present:
            next_us = self._next_us()
            if next_us is None:
                break
            self._pass_to(next_us)
            matters = [self._end_stages(), self._let_come()]
            every_us = self._policy.every_us
            due = every_us is not None and next_us % every_us == 0
            if self._present and (due or (self._policy.on_events and any(matters))):
                self._decide()
            self._begin_stages()
        energy_cost = self._places.energy_cost(sum(self._energy_j.values()))
        return FleetOutcome(
            self._policy.name,
            self._records,
            self._now_us,
            self._energy_j,
            energy_cost,
            tuple(self._decide_s),
        )

    def _next_us(self) -> int | None:
        due = [present.ends_us for present in self._present.values() if present.stage is not None]
        due += [job.arrives_us for job in self._to_come[:1]]
        every_us = self._policy.every_us
        self._idle_calls = 0 if due else self._idle_calls + 1
        if every_us is not None and self._idle_calls <= IDLE_CALLS:
            if self._present:
                due.append((self._now_us // every_us + 1) * every_us)
            if not self._policy.on_events:
                due = [-(-at // every_us) * every_us for at in due]
        return min(due, default=None)

    def _pass_to(self, now_us: int) -> None:
        passed_s = (now_us - self._now_us) / US_PER_S
        in_use = Counter[NodeName]()
        for present in self._present.values():
            for part in () if present.assignment is None else present.assignment.parts:
                in_use[part.node] += part.gpus
        # Idle nodes are switched off, as in ANDREAS, where w_n chooses the open nodes.
        for name, gpus in in_use.items():
            power_w = self._places.nodes[name].power_w
            if gpus and power_w:
                self._energy_j[name] += power_w[gpus] * passed_s
        self._now_us = now_us

    def _end_stages(self) -> bool:
        """Takes the snapshots of stages that end now; returns whether a job is done."""
        done = []
        for present in self._present.values():
            if present.stage is None or present.ends_us > self._now_us:
                continue
            left, present.stage = present.stage.left, None
            if left is None:
                done.append(present.job.name)
            else:
                present.left = left
        for name in done:
            del self._present[name]
            self._records[name].ended_us = self._now_us
        return bool(done)

    def _let_come(self) -> bool:
        came = False
        while self._to_come and self._to_come[0].arrives_us <= self._now_us:
            job = self._to_come.pop(0)
            self._present[job.name] = _Present(job, Left.all_of(job))
            came = True
        return came

    def _view(self) -> FleetView:
        states = tuple(present.state(self._now_us) for present in self._present.values())
        return FleetView(self._now_us, states, self._places, self._seed)

    def _decide(self) -> None:
        view = self._view()
        began_s = self._timer()
        decision = self._policy.decide(view)
        self._decide_s.append(self._timer() - began_s)
        faults = _misplaced(view, decision) or self._physics.faults(view, decision.assignments)
        if faults:
            at_s = view.now_us / US_PER_S
            raise BrokenConstraintError(f"{self._policy.name} at {at_s:g} s: {'; '.join(faults)}")
        assigned = {assignment.job: assignment for assignment in decision.assignments}
        for present in self._present.values():
            self._assign(present, assigned.get(present.job.name))

    def _assign(self, present: _Present, assignment: JobAssignment | None) -> None:
        before, record = present.assignment, self._records[present.job.name]
        if assignment == before:
            return
        self._interrupt(present)
        if before is not None and assignment is None:
            record.preemptions += 1
        if before is not None and assignment is not None and _nodes_of(before) != _nodes_of(assignment):
            record.migrations += 1
        present.assignment = assignment
        present.resumes = record.started_us is not None

    def _interrupt(self, present: _Present) -> None:
        interrupted = present.interrupted(self._now_us)
        self._records[present.job.name].lost_us += interrupted.lost_us
        present.left, present.stage = interrupted.left, None

    def _begin_stages(self) -> None:
        """Begins the next stage of each assigned job that is between two stages."""
        running = [(one, one.assignment) for one in self._present.values() if one.assignment is not None]
        idle = [(present, assignment) for present, assignment in running if present.stage is None]
        if not idle:
            return
        view = self._view()
        for present, assignment in idle:
            state, record = present.state(self._now_us), self._records[present.job.name]
            others = [other for _, other in running if other is not assignment]
            stage = self._physics.stage(view, state, assignment, others)
            resume_us = stage.resume_us if present.resumes else 0
            present.resumes = False
            if record.started_us is None:
                record.started_us = self._now_us
            record.moved_mb += stage.moved_mb
            record.link_cost += stage.link_cost
            record.late_apps += stage.late_apps
            present.stage, present.began_us = stage, self._now_us
            present.ends_us = self._now_us + resume_us + stage.takes_us


def _nodes_of(assignment: JobAssignment) -> frozenset[NodeName]:
    nodes = {part.node for part in assignment.parts}
    return frozenset(nodes if assignment.parameter_server is None else nodes | {assignment.parameter_server})


def _misplaced(view: FleetView, decision: Decision) -> list[str]:
    """Returns the faults of a decision that no world allows."""
    there, nodes = {state.job.name for state in view.jobs}, view.places.nodes
    faults, seen, in_use = [], set[JobName](), Counter[NodeName]()
    for assignment in decision.assignments:
        if assignment.job not in there or assignment.job in seen:
            faults.append(f"{assignment.job} is assigned twice, or is not there")
        seen.add(assignment.job)
        if not assignment.parts:
            faults.append(f"{assignment.job} is assigned to no node")
        for name in sorted(_nodes_of(assignment) - nodes.keys()):
            faults.append(f"{assignment.job} is on {name}, which is not there")
        for part in assignment.parts:
            in_use[part.node] += part.gpus
    for name, gpus in in_use.items():
        if name in nodes and gpus > nodes[name].gpus:
            faults.append(f"{name} has {nodes[name].gpus} GPUs, and {gpus} are given out")
    told = {assignment.job for assignment in decision.assignments if assignment.reason} | {*decision.waiting}
    faults += [f"{name} has no reason" for name in sorted(there - told)]
    return faults
