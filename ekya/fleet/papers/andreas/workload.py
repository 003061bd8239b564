"""ANDREAS's world: how jobs run, and its workloads (§V.B, §V.C): V100 and TURING nodes, bursts of jobs.

The paper's numbers are in an appendix that we do not have; those here are ours, fixed before any tuning, and
in docs/fleet/andreas.md. A node's power is that of a ThunderX2 board with V100-PCIe or T4 cards. Both
scenarios of a size and a seed have the same jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.job import Left, Tardiness, TrainJob
from ekya.fleet.policy.places import JobName, Node, NodeName, Places, SiteName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.engine import Kept, Stage

V100, TURING = "V100", "TURING"

KWH_EUR, PUE = 0.172, 1.33
"""§V.A."""

SEEDS = (1, 2, 3, 4, 5)
"""Seeds of every figure. Tuning uses other seeds, from 101 on."""

SIZES = tuple(range(10, 101, 10))
"""N in the figures."""

JOBS_A_NODE = 10

HIGH_GAP_S, LOW_GAP_S = 3000.0, 9000.0
"""Mean time between two arrivals at the high and the low rate, for one node; divided by N for a cluster."""

PHASES = 4

SLACK = (1.2, 3.0)
WEIGHTS_EUR_S = (1e-4, 5e-4)
"""Bounds of uniform distributions: slack of due dates, and tardiness weights."""

BASE_W = {V100: 100.0, TURING: 100.0}
GPU_W = {V100: 230.0, TURING: 65.0}

SITE = SiteName("armida")


@dataclass(frozen=True, slots=True)
class NetworkFamily:
    """Jobs that train one kind of network.

    Attributes:
        epoch_s: an epoch on one V100 at the first batch size.
        batches: sizes to draw from; each takes ``SAVING`` of the time of the previous one.
        epochs: bounds of the uniformly drawn number of epochs.
        scaling: exponent of the speed-up by GPUs.
        turing: time on a TURING over that on a V100.
    """

    name: str
    epoch_s: float
    batches: tuple[int, ...]
    epochs: tuple[int, int]
    scaling: float
    turing: float

    def epoch_us(self, batch: int) -> dict[tuple[str, int], int]:
        """Returns the length of an epoch on up to four V100s or TURINGs, as a profiler would measure it."""
        doublings = self.batches.index(batch)
        one_s = self.epoch_s * SAVING**doublings
        slowdowns = {V100: 1.0, TURING: self.turing}
        return {
            (kind, gpus): round(one_s * slowdown / gpus**self.scaling * US_PER_S)
            for kind, slowdown in slowdowns.items()
            for gpus in range(1, MOST_GPUS + 1)
        }


SAVING = 0.8
MOST_GPUS = 4

FAMILIES = (
    NetworkFamily("LSTM", 75.0, (32, 64, 128), (50, 150), 0.60, 1.8),
    NetworkFamily("EfficientNet", 300.0, (16, 32, 64), (30, 90), 0.75, 2.2),
    NetworkFamily("ConvolutionNet", 31.0, (32, 64, 128, 256), (50, 200), 0.65, 1.6),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of the two scenarios of §V.B: number of GPUs in a node of each kind."""

    name: str
    gpus: tuple[tuple[str, int], ...]


TWO_GPUS = Scenario("two-gpu", ((V100, 2), (TURING, 1)))
FOUR_GPUS = Scenario("four-gpu", ((V100, 4), (TURING, 2)))
SCENARIOS = (TWO_GPUS, FOUR_GPUS)


def andreas_workload(
    scenario: Scenario,
    nodes: int,
    seed: int,
    load: float = 1.0,
) -> tuple[tuple[TrainJob, ...], Places]:
    """Draws jobs and places of one instance of §V.B.

    Args:
        nodes: N; where it is odd, there is one more V100 node.
        load: factor on the arrival rates above.
    """
    rng = np.random.default_rng([seed, nodes])
    return tuple(_jobs(rng, nodes * load, JOBS_A_NODE * nodes)), places(
        node(f"node-{place + 1:03}", *scenario.gpus[place % len(scenario.gpus)]) for place in range(nodes)
    )


def armida_workload(seed: int) -> tuple[tuple[TrainJob, ...], Places]:
    """Draws the workload of §V.C: eight jobs, one every 1200 s, on armida-05, -06 and -07 (Table II)."""
    rng = np.random.default_rng([seed, 8])
    jobs = tuple(_job(rng, place, round(1200 * US_PER_S * place)) for place in range(8))
    return jobs, places(
        (node("armida-05", V100, 1), node("armida-06", V100, 2), node("armida-07", TURING, 1))
    )


def node(name: str, kind: str, gpus: int) -> Node:
    """Returns a node with the power of its kind; an idle node is switched off."""
    power_w = tuple(BASE_W[kind] + GPU_W[kind] * used if used else 0.0 for used in range(gpus + 1))
    return Node(NodeName(name), SITE, kind, gpus, power_w)


def places(nodes: Iterator[Node] | tuple[Node, ...]) -> Places:
    """Returns the nodes as places, with the price of energy."""
    return Places({node.name: node for node in nodes}, kwh_cost=KWH_EUR, pue=PUE)


def _jobs(rng: np.random.Generator, rate: float, count: int) -> Iterator[TrainJob]:
    at_s = 0.0
    for place in range(count):
        yield _job(rng, place, round(at_s * US_PER_S))
        phase = (place + 1) * PHASES // count
        at_s += rng.exponential((LOW_GAP_S if phase % 2 else HIGH_GAP_S) / rate)


def _job(rng: np.random.Generator, place: int, arrives_us: int) -> TrainJob:
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    batch = int(rng.choice(family.batches))
    epochs = int(rng.integers(family.epochs[0], family.epochs[1] + 1))
    epoch_us = family.epoch_us(batch)
    due_s = float(rng.uniform(*SLACK)) * epochs * epoch_us[V100, 1] / US_PER_S
    return TrainJob(
        JobName(f"{family.name}-{batch}-{place + 1:04}"),
        arrives_us,
        epochs,
        Tardiness(due_s, float(rng.uniform(*WEIGHTS_EUR_S))),
        epoch_us=epoch_us,
    )


@dataclass(frozen=True, slots=True)
class AndreasPhysics:
    """ANDREAS's physics: a stage is the remaining work of a job; each epoch in it ends with a snapshot (§V).

    Attributes:
        starts_again_us: time to start the container and load the snapshot after a migration or preemption.
        snapshots: whether a moved or preempted job continues from its last snapshot. If not, it loses
            nothing, as in the paper's own simulator, where a reconfiguration costs nothing (§V.C).
        pace: real time of a job's epoch over the profiled one; 1 where it is missing.
    """

    starts_again_us: int = 0
    snapshots: bool = True
    pace: Mapping[JobName, float] = field(default_factory=dict)

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Checks that each job is on one node, on a number of GPUs that was profiled."""
        faults = []
        for assignment in assignments:
            job, part = view.state(assignment.job).job, assignment.parts[0]
            if len(assignment.parts) != 1:
                faults.append(f"{job.name} is on {len(assignment.parts)} nodes")
            elif (kind := view.places.nodes[part.node].kind, part.gpus) not in job.epoch_us:
                faults.append(f"{job.name} has no profile of {part.gpus} GPUs of {kind}")
        return faults

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns the stage to the job's end; other jobs do not slow it down."""
        part, left = assignment.parts[0], state.left
        profiled_us = state.job.epoch_us[view.places.nodes[part.node].kind, part.gpus]
        epoch_us = profiled_us * self.pace.get(state.job.name, 1.0)

        def kept(worked_us: int) -> Kept:
            done = left.begun + worked_us / epoch_us
            # An interruption never completes the last epoch, also where rounding says so.
            whole = min(int(done), left.epochs - 1)
            begun = 0.0 if self.snapshots else min(done - whole, 1.0)
            lost_us = round((done - whole) * epoch_us) if self.snapshots else 0
            return Kept(Left(left.epochs - whole, left.chunks, begun), lost_us)

        return Stage(
            max(1, round((left.epochs - left.begun) * epoch_us)),
            None,
            kept=kept,
            resume_us=self.starts_again_us,
        )
