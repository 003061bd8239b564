"""Registry of the papers' worlds: jobs, places, physics and the policies that can run in each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from ekya.core.errors import UserError
from ekya.fleet.papers.andreas.workload import (
    FOUR_GPUS,
    TWO_GPUS,
    AndreasPhysics,
    Scenario,
    andreas_workload,
)
from ekya.fleet.papers.deep_edge.workload import EdgePhysics, edge_experiment
from ekya.fleet.papers.okita.workload import OkitaPhysics, OkitaSetting, OkitaWorkload, simulation
from ekya.fleet.papers.registry import OF_ANDREAS, OF_DEEP_EDGE, OF_OKITA, PLAYED, Make, Terms
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.view import FleetPolicy
from ekya.fleet.sim.engine import Physics


@dataclass(frozen=True, slots=True)
class PaperWorld:
    """One drawn workload; ``policy`` makes the policy of a name."""

    jobs: tuple[TrainJob, ...]
    places: Places
    physics: Physics
    policy: Callable[[str], FleetPolicy]
    currency: str


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """A user's options for a workload.

    Attributes:
        nodes, jobs: numbers; None: the world's default.
        restart_us: time in which an interrupted job restarts from its last snapshot; None: as in the paper's
            simulator.
    """

    nodes: int | None
    jobs: int | None
    policies: tuple[str, ...]
    restart_us: int | None = None


Draw = Callable[[int], PaperWorld]
"""Draws a world from a seed."""


@dataclass(frozen=True, slots=True)
class WorldKind:
    """A workload that can be drawn.

    Attributes:
        nodes: default number of nodes.
        open: checks the options and does the slow preparation once.
        shown: names of the facts of a run that are shown.
    """

    nodes: int
    open: Callable[[WorkloadOptions], Draw]
    policies: Mapping[str, Make]
    shown: tuple[str, ...] = (
        "total_cost",
        "waiting_cost",
        "link_cost",
        "energy_cost",
        "makespan_s",
        "late_jobs",
        "unfinished_jobs",
        "migrations",
    )


_ANDREAS_NODES = 10

EDGE_NODES, EDGE_EPOCHS = 5, 10
"""Machines of Deep-Edge's testbed, and epochs of an update, which the paper does not state."""


def _andreas(scenario: Scenario, asked: WorkloadOptions) -> Draw:
    physics = AndreasPhysics(asked.restart_us or 0, snapshots=asked.restart_us is not None)
    made = partial(_made, Terms(restart_us=asked.restart_us))

    def draw(seed: int) -> PaperWorld:
        jobs, places = andreas_workload(scenario, asked.nodes or _ANDREAS_NODES, seed)
        return PaperWorld(jobs[: asked.jobs], places, physics, made, "EUR")

    return draw


def _okita(asked: WorkloadOptions) -> Draw:
    _refuse_restart(asked, "okita")
    usual = OkitaSetting()
    setting = replace(usual, sites=asked.nodes or usual.sites, jobs=asked.jobs or usual.jobs)

    def draw(seed: int) -> PaperWorld:
        drawn = simulation(setting, seed)
        physics, made = OkitaPhysics(setting.slot_us), partial(_made, okita_terms(drawn))
        return PaperWorld(drawn.jobs, drawn.places, physics, made, "cost units")

    return draw


def _deep_edge(asked: WorkloadOptions) -> Draw:
    _refuse_restart(asked, "deep-edge")
    if asked.nodes not in (None, EDGE_NODES):
        raise UserError(
            f"--nodes {asked.nodes}: deep-edge's testbed has {EDGE_NODES}, a TX2, three Nanos and a Pi; "
            "leave --nodes out"
        )
    if asked.jobs not in (None, 1):
        raise UserError(
            f"--first {asked.jobs}: in deep-edge each seed has one update; leave --first out, "
            "and give more --seeds"
        )
    # This imports scikit-learn, which is slow and which no other world needs.
    from ekya.fleet.papers.deep_edge.testbed import deciders

    decide = deciders(asked.policies)

    def draw(seed: int) -> PaperWorld:
        experiment = edge_experiment(seed, epochs=EDGE_EPOCHS)
        physics = EdgePhysics(experiment.truth)
        return PaperWorld((experiment.job,), experiment.places, physics, decide.__getitem__, "s")

    return draw


def okita_terms(world: OkitaWorkload) -> Terms:
    """Returns the terms of Okita's policies for a workload."""
    return Terms(world.setting.slot_us, world.setting.until_us)


def _made(terms: Terms, name: str) -> FleetPolicy:
    return PLAYED[name](terms)


def _refuse_restart(asked: WorkloadOptions, world: str) -> None:
    if asked.restart_us is not None:
        raise UserError(f"--restart: {world} says itself what an interruption costs; leave it out")


WORLDS: Mapping[str, WorldKind] = MappingProxyType(
    {
        "andreas-two-gpu": WorldKind(
            _ANDREAS_NODES,
            partial(_andreas, TWO_GPUS),
            OF_ANDREAS,
        ),
        "andreas-four-gpu": WorldKind(
            _ANDREAS_NODES,
            partial(_andreas, FOUR_GPUS),
            OF_ANDREAS,
        ),
        "okita": WorldKind(
            OkitaSetting().sites,
            _okita,
            OF_OKITA,
        ),
        "deep-edge": WorldKind(
            EDGE_NODES,
            _deep_edge,
            OF_DEEP_EDGE,
            ("total_cost", "epoch_s", "late_apps", "unfinished_jobs", "migrations", "lost_s"),
        ),
    }
)


def world_kind(name: str) -> WorldKind:
    """Returns the kind of world with this name.

    Raises:
        UserError: there is no such world.
    """
    if name not in WORLDS:
        raise UserError(f"WORLD {name}: there is no such world; choose one of {', '.join(WORLDS)}")
    return WORLDS[name]
