"""Shared parts of the ANDREAS recipes: policies, worlds, and the record of a simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from time import process_time

from ekya.core.units import US_PER_S
from ekya.fleet.papers.andreas.workload import FOUR_GPUS, TWO_GPUS, AndreasPhysics, Scenario, andreas_workload
from ekya.fleet.papers.registry import PLAYED, Terms
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.view import FleetPolicy
from ekya.fleet.sim.engine import FleetEngine

ANDREAS, GREEDY, WORTH = "andreas", "greedy", "worth"
FIRST_PRINCIPLES = ("fifo", "edf", "priority")
FREE, PAID = "moves for nothing", "moves paid for"
RESTART_US = 60 * US_PER_S
WORLDS = {FREE: AndreasPhysics(snapshots=False), PAID: AndreasPhysics(RESTART_US)}
"""The paper's simulator, with free moves, and one with paid moves.

Where moves are paid, an interrupted job goes back to its last epoch and takes a minute to start again.
"""

COLOURS = {
    "fifo": "#9a9a9a",
    "edf": "#5d7fa8",
    "priority": "#b08a3c",
    ANDREAS: "#b5473c",
    GREEDY: "#d99a8f",
    WORTH: "#2f7d5b",
}


def policies(world: str) -> tuple[FleetPolicy, ...]:
    """Returns the compared policies.

    ``greedy`` is ANDREAS with a single schedule, so without randomness. ``worth`` gets the true cost of moves
    in the world where they are free; ANDREAS assumes free moves in every world. It is called at arrivals and
    ends alone.
    """
    terms = Terms(restart_us=None if world == FREE else RESTART_US)
    made = {name: PLAYED[name](terms) for name in (*FIRST_PRINCIPLES, WORTH)}
    greedy = Andreas(iterations=1, name=GREEDY, periodic=False)
    return *(made[name] for name in FIRST_PRINCIPLES), Andreas(periodic=False), greedy, made[WORTH]


@dataclass(frozen=True, slots=True)
class Played:
    """Result of one simulation; costs in euros."""

    scenario: str
    load: float
    world: str
    nodes: int
    seed: int
    policy: str
    energy: float
    total: float
    makespan_s: float
    late: int
    interruptions: int
    lost_gpu_h: float
    calls: int
    call_s: float
    longest_call_s: float


def play(
    policy: FleetPolicy, scenario: Scenario, nodes: int, seed: int, load: float = 1.0, world: str = FREE
) -> Played:
    """Simulates one policy on one instance. Calls are timed in processor seconds of this process."""
    jobs, places = andreas_workload(scenario, nodes, seed, load)
    engine = FleetEngine(policy, WORLDS[world], jobs, places, seed=seed, timer=process_time)
    outcome = engine.run()
    records = outcome.jobs.values()
    return Played(
        scenario.name,
        load,
        world,
        nodes,
        seed,
        policy.name,
        outcome.energy_cost,
        outcome.total_cost,
        outcome.makespan_s,
        outcome.missed,
        sum(one.migrations + one.preemptions for one in records),
        sum(one.lost_us for one in records) / 3.6e9,
        len(outcome.decide_s),
        fmean(outcome.decide_s),
        max(outcome.decide_s),
    )


def below(rows: Sequence[Played], policy: str, other: str) -> float:
    """Returns the part by which one policy's total cost is below the other's, a mean over instances."""
    totals = {_instance(row): row.total for row in rows if row.policy == other}
    ours = [row for row in rows if row.policy == policy]
    return fmean(1 - row.total / totals[_instance(row)] for row in ours)


def below_first_principles(rows: Sequence[Played], policy: str) -> float:
    """Returns the mean over the three methods: the reduction as the paper defines it."""
    return fmean(below(rows, policy, other) for other in FIRST_PRINCIPLES)


def most_below_first_principles(rows: Sequence[Played]) -> float:
    """Returns an upper bound of ``below_first_principles`` over all policies, whatever they know.

    No job can cost less than the energy of its cheapest configuration, with its node fully used and no
    lateness.
    """
    least = {
        (row.scenario, row.load, row.nodes, row.seed): _least_energy(*_drawn(row))
        for row in rows
        if row.policy in FIRST_PRINCIPLES
    }
    return fmean(
        1 - least[row.scenario, row.load, row.nodes, row.seed] / row.total
        for row in rows
        if row.policy in FIRST_PRINCIPLES
    )


def _drawn(row: Played) -> tuple[tuple[TrainJob, ...], Places]:
    scenario = next(one for one in (TWO_GPUS, FOUR_GPUS) if one.name == row.scenario)
    return andreas_workload(scenario, row.nodes, row.seed, row.load)


def _least_energy(jobs: Sequence[TrainJob], places: Places) -> float:
    nodes = {(node.kind, node.gpus): node for node in places.nodes.values()}.values()
    a_gpu_second = {node.kind: places.cost_a_second(node, node.gpus) / node.gpus for node in nodes}
    return sum(
        job.epochs
        * min(
            job.epoch_us[node.kind, gpus] / US_PER_S * gpus * a_gpu_second[node.kind]
            for node in nodes
            for gpus in range(1, node.gpus + 1)
        )
        for job in jobs
    )


def _instance(row: Played) -> tuple[str, float, str, int, int]:
    return row.scenario, row.load, row.world, row.nodes, row.seed
