"""Typed names; machines that can train, and the links between their sites."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

JobName = NewType("JobName", str)
"""Name of a training job."""

NodeName = NewType("NodeName", str)
"""Name of a machine that can train."""

SiteName = NewType("SiteName", str)
"""Name of a place with machines and data: an edge server, a cloudlet."""

STORES = SiteName("stores")
"""Site of the updates of stored models, which the driver of a run offers."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """X_i, utilisation of a machine in [0, 1], at the 95th percentile (Deep-Edge §IV.C).

    Attributes:
        cpu: of all its cores.
        gpu: of its GPU.
        mem: of its memory.
    """

    cpu: float = 0.0
    gpu: float = 0.0
    mem: float = 0.0


@dataclass(frozen=True, slots=True)
class BackgroundApp:
    """A ∈ backApp_i: an application with a deadline that runs on a machine beside trainings.

    Attributes:
        name: applications of one name take equally long on machines of a kind in equal states.
        deadline_s: of each execution.
    """

    name: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Node:
    """A machine.

    Attributes:
        name, site: name of the machine and of its place.
        kind: machines of a kind are equally fast.
        gpus: G_n.
        power_w: with 0, 1, ... GPUs in use; length ``gpus + 1``, or empty where energy is not counted.
        capacity: C_r^k, by resource.
        state: last measured one, without the fleet's trainings.
        apps: its background applications with deadlines.
    """

    name: NodeName
    site: SiteName
    kind: str
    gpus: int = 0
    power_w: tuple[float, ...] = ()
    capacity: Mapping[str, float] = field(default_factory=dict)
    state: NodeState = NodeState()
    apps: tuple[BackgroundApp, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """All machines, and the links between their sites.

    Attributes:
        nodes: by name.
        link_cost: q^{rr'}, cost of a megabyte from one site to another; within a site 0.
        kwh_cost: price of a kWh.
        pue: power usage effectiveness: energy of the whole site over that of its machines.
    """

    nodes: Mapping[NodeName, Node]
    link_cost: Mapping[tuple[SiteName, SiteName], float] = field(default_factory=dict)
    kwh_cost: float = 0.0
    pue: float = 1.0

    def mb_cost(self, origin: SiteName, target: SiteName) -> float:
        """Returns the cost of sending a megabyte."""
        return 0.0 if origin == target else self.link_cost.get((origin, target), 0.0)

    def energy_cost(self, joules: float) -> float:
        """Returns the operator's cost of energy, with the site's overhead."""
        return joules / 3.6e6 * self.kwh_cost * self.pue

    def cost_a_second(self, node: Node, gpus: int) -> float:
        """Returns c_ng, the energy cost of a node per second with g GPUs in use."""
        return self.energy_cost(node.power_w[gpus]) if node.power_w else 0.0
