"""The papers' worlds by name: jobs, places, laws, and who can decide there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ekya.errors import UserError
from ekya.fleet.policy.andreas.first_principles import edf, fifo, priority
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.worth import Worth
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.okita.fixed import Drf, OkitaFifo
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.okita.oasis import Oasis
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.sim.andreas_physics import AndreasPhysics
from ekya.fleet.sim.andreas_workload import FOUR_GPUS, TWO_GPUS, Scenario, andreas_workload
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
class WorldKind:
    """A workload that can be drawn.

    Attributes:
        about: one line.
        nodes: how many there are where nobody says.
        draw: makes it from a number of nodes, of jobs (None: the paper's) and a seed.
        policies: names of those who can decide.
    """

    about: str
    nodes: int
    draw: Callable[[int, int | None, int], World]
    policies: tuple[str, ...]


ANDREAS_POLICIES: Mapping[str, Callable[[], FleetPolicy]] = MappingProxyType(
    {"andreas": Andreas, "worth": lambda: Worth(moving_s=0.0), "fifo": fifo, "edf": edf, "priority": priority}
)
"""In a world where a job that is interrupted goes back to its last epoch, and starts in no time."""

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


def _andreas(scenario: Scenario) -> Callable[[int, int | None, int], World]:
    def draw(nodes: int, count: int | None, seed: int) -> World:
        jobs, places = andreas_workload(scenario, nodes, seed)
        return World(jobs[:count], places, AndreasPhysics(), ANDREAS_POLICIES, "EUR")

    return draw


def _okita(nodes: int, count: int | None, seed: int) -> World:
    usual = OkitaSetting()
    drawn = simulation(replace(usual, sites=nodes, jobs=count or usual.jobs), seed)
    slot_us = drawn.setting.slot_us
    until_us = slot_us * drawn.setting.slots

    def asked_in_slots(make: Callable[[int, int], FleetPolicy]) -> Callable[[], FleetPolicy]:
        return lambda: make(slot_us, until_us)

    policies = {name: asked_in_slots(make) for name, make in OKITA_POLICIES.items()}
    return World(drawn.jobs, drawn.places, OkitaPhysics(slot_us), policies, "cost units")


WORLDS: Mapping[str, WorldKind] = MappingProxyType(
    {
        "andreas-two-gpu": WorldKind(
            "ANDREAS §V.B: half the nodes have two V100, half one Turing; ten jobs a node",
            10,
            _andreas(TWO_GPUS),
            tuple(ANDREAS_POLICIES),
        ),
        "andreas-four-gpu": WorldKind(
            "ANDREAS §V.B: half the nodes have four V100, half two Turing; ten jobs a node",
            10,
            _andreas(FOUR_GPUS),
            tuple(ANDREAS_POLICIES),
        ),
        "okita": WorldKind(
            "Okita §V.B: sites with data of their own, a hundred jobs with a parameter server each",
            50,
            _okita,
            tuple(OKITA_POLICIES),
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
