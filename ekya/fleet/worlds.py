"""The papers' worlds by name: jobs, places, laws, and who can decide there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from ekya.core.units import us_to_seconds
from ekya.errors import UserError
from ekya.fleet.policy.andreas.first_principles import edf, fifo, priority
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.worth import Worth
from ekya.fleet.policy.deep_edge.solvers import SOLVERS
from ekya.fleet.policy.job import EpochUs, TrainJob
from ekya.fleet.policy.okita.fixed import Drf, OkitaFifo
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.okita.oasis import Oasis
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.sim.andreas_physics import AndreasPhysics
from ekya.fleet.sim.andreas_workload import (
    FOUR_GPUS,
    PROFILE_NAMES,
    TWO_GPUS,
    Scenario,
    andreas_workload,
)
from ekya.fleet.sim.deep_edge.physics import EdgePhysics
from ekya.fleet.sim.deep_edge.workload import edge_experiment
from ekya.fleet.sim.okita_physics import OkitaPhysics
from ekya.fleet.sim.okita_workload import OkitaSetting, simulation
from ekya.fleet.sim.physics import Physics


@dataclass(frozen=True, slots=True)
class World:
    """One workload, drawn.

    Attributes:
        jobs, places, physics: as the engine wants them.
        policies: who can decide, by name; the paper's own comes first.
        currency: of all costs.
    """

    jobs: tuple[TrainJob, ...]
    places: Places
    physics: Physics
    policies: Mapping[str, Callable[[], FleetPolicy]]
    currency: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user wants of a workload.

    Attributes:
        nodes, jobs: how many; None: the world's own number.
        policies: who will decide.
        restart_us: what a job that was interrupted takes to start again, from its last snapshot; None: as
            the paper's own simulator has it.
        profiles: of ANDREAS's jobs, by name, instead of the workload's own.
    """

    nodes: int | None
    jobs: int | None
    policies: tuple[str, ...]
    restart_us: int | None = None
    profiles: Mapping[str, EpochUs] = field(default_factory=dict)


Draw = Callable[[int], World]
"""From a seed."""


@dataclass(frozen=True, slots=True)
class WorldKind:
    """A workload that can be drawn.

    Attributes:
        about: one line.
        nodes: how many there are where nobody says.
        open: checks what is asked for, and does once what takes long; it tells again and again which part of
            that is done.
        policies: names of those who can decide.
        shown: of the facts of a run, those that say most.
    """

    about: str
    nodes: int
    open: Callable[[Asked, Callable[[float], object]], Draw]
    policies: tuple[str, ...]
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


ANDREAS_POLICIES: Mapping[str, Callable[[int | None], FleetPolicy]] = MappingProxyType(
    {
        "andreas": lambda _: Andreas(),
        "worth": lambda restart_us: (
            Worth(moving_s=0.0, lost_epochs=0.0)
            if restart_us is None
            else Worth(moving_s=us_to_seconds(restart_us))
        ),
        "fifo": lambda _: fifo(),
        "edf": lambda _: edf(),
        "priority": lambda _: priority(),
    }
)
"""Made from what a start after an interruption takes; None where moves cost nothing."""

OKITA_POLICIES: Mapping[str, Callable[[int, int], FleetPolicy]] = MappingProxyType(
    {
        "okita": lambda slot_us, until_us: Okita(slot_us, until_us=until_us),
        "okita-joint": lambda slot_us, until_us: OkitaJoint(slot_us, until_us=until_us),
        "okita-fifo": lambda slot_us, _: OkitaFifo(slot_us),
        "drf": lambda slot_us, _: Drf(slot_us),
        "oasis": lambda slot_us, _: Oasis(slot_us),
    }
)
"""Made from the length of a slot and the end of the last one."""


_ANDREAS_NODES = 10

EDGE_NODES, EDGE_EPOCHS = 5, 10
"""Of Deep-Edge's testbed, and of an update there; the paper does not say how many epochs one has."""


def _andreas(scenario: Scenario) -> Callable[[Asked, object], Draw]:
    def opened(asked: Asked, _done: object) -> Draw:
        if unknown := sorted(asked.profiles.keys() - set(PROFILE_NAMES)):
            known = ", ".join(PROFILE_NAMES)
            raise UserError(f"--profiles: profiles.{unknown[0]}: no job is called so; they are {known}")
        paid = asked.restart_us is not None
        physics = AndreasPhysics(asked.restart_us or 0, snapshots=paid)
        policies = {name: partial(make, asked.restart_us) for name, make in ANDREAS_POLICIES.items()}

        def draw(seed: int) -> World:
            nodes = asked.nodes or _ANDREAS_NODES
            jobs, places = andreas_workload(scenario, nodes, seed, profiles=asked.profiles)
            return World(jobs[: asked.jobs], places, physics, policies, "EUR")

        return draw

    return opened


def _okita(asked: Asked, _done: object) -> Draw:
    _refuse_andreas_options(asked, "okita")
    usual = OkitaSetting()
    setting = replace(usual, sites=asked.nodes or usual.sites, jobs=asked.jobs or usual.jobs)

    def asked_in_slots(
        make: Callable[[int, int], FleetPolicy], slot_us: int, until_us: int
    ) -> Callable[[], FleetPolicy]:
        return lambda: make(slot_us, until_us)

    def draw(seed: int) -> World:
        drawn = simulation(setting, seed)
        slot_us = drawn.setting.slot_us
        until_us = slot_us * drawn.setting.slots
        policies = {name: asked_in_slots(make, slot_us, until_us) for name, make in OKITA_POLICIES.items()}
        return World(drawn.jobs, drawn.places, OkitaPhysics(slot_us), policies, "cost units")

    return draw


def _deep_edge(asked: Asked, done: Callable[[float], object]) -> Draw:
    _refuse_andreas_options(asked, "deep-edge")
    if asked.nodes not in (None, EDGE_NODES):
        raise UserError(
            f"--nodes {asked.nodes}: deep-edge's testbed has {EDGE_NODES}, a TX2, three Nanos and a Pi; "
            "leave --nodes out"
        )
    if asked.jobs not in (None, 1):
        raise UserError(
            f"--jobs {asked.jobs}: in deep-edge each seed has one update; leave --jobs out, "
            "and give more --seeds"
        )
    # It brings scikit-learn, for which the other worlds need not wait.
    from ekya.fleet.deep_edge_testbed import deciders

    decide = deciders(asked.policies, done)

    def always(policy: FleetPolicy) -> Callable[[], FleetPolicy]:
        return lambda: policy

    def draw(seed: int) -> World:
        experiment = edge_experiment(seed, epochs=EDGE_EPOCHS)
        policies = {name: always(policy) for name, policy in decide.items()}
        return World((experiment.job,), experiment.places, EdgePhysics(experiment.truth), policies, "s")

    return draw


def _refuse_andreas_options(asked: Asked, world: str) -> None:
    if asked.profiles:
        raise UserError(f"--profiles: only jobs of ANDREAS have any, and {world}'s do not; leave it out")
    if asked.restart_us is not None:
        raise UserError(f"--restart: {world} says itself what an interruption costs; leave it out")


WORLDS: Mapping[str, WorldKind] = MappingProxyType(
    {
        "andreas-two-gpu": WorldKind(
            "ANDREAS §V.B: half the nodes have two V100, half one Turing; ten jobs a node",
            _ANDREAS_NODES,
            _andreas(TWO_GPUS),
            tuple(ANDREAS_POLICIES),
        ),
        "andreas-four-gpu": WorldKind(
            "ANDREAS §V.B: half the nodes have four V100, half two Turing; ten jobs a node",
            _ANDREAS_NODES,
            _andreas(FOUR_GPUS),
            tuple(ANDREAS_POLICIES),
        ),
        "okita": WorldKind(
            "Okita §V.B: sites with data of their own, a hundred jobs with a parameter server each",
            OkitaSetting().sites,
            _okita,
            tuple(OKITA_POLICIES),
        ),
        "deep-edge": WorldKind(
            "Deep-Edge §V.C: an update over a TX2 and three Nanos with other work on them, and a Pi",
            EDGE_NODES,
            _deep_edge,
            tuple(SOLVERS),
            ("total_cost", "epoch_s", "late_apps", "unfinished_jobs", "migrations", "lost_s"),
        ),
    }
)


def world_kind(name: str) -> WorldKind:
    """The kind of that name.

    Raises:
        UserError: there is none.
    """
    if name not in WORLDS:
        raise UserError(f"WORLD {name}: there is no such world; choose one of {', '.join(WORLDS)}")
    return WORLDS[name]
