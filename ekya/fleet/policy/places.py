"""Where things can be trained, and what lies between."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.names import NodeName, SiteName


@dataclass(frozen=True, slots=True)
class NodeState:
    """X_i, how much of a machine is in use: parts of one, at the 95th percentile (Deep-Edge §IV.C).

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
    """A ∈ backApp_i: what runs on a machine beside any training, and may not be late.

    Attributes:
        name: equal ones take equally long on machines of a kind in equal states.
        deadline_s: within which each of its executions has to end.
    """

    name: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Node:
    """A machine.

    Attributes:
        name, site: its own, and where it stands.
        kind: machines of a kind are equally fast.
        gpus: G_n.
        power_w: drawn with 0, 1, ... GPUs in use; length ``gpus + 1``, or empty where nobody counts energy.
        capacity: C_r^k, of each resource.
        state: without the fleet's trainings, as it was measured last.
        apps: what may not be late on it.
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
        link_mb_s: megabytes a second; where a pair is missing, a transfer takes no time.
        kwh_cost: price of energy.
        pue: energy of the whole site for one unit of its machines'.
    """

    nodes: Mapping[NodeName, Node]
    link_cost: Mapping[tuple[SiteName, SiteName], float] = field(default_factory=dict)
    link_mb_s: Mapping[tuple[SiteName, SiteName], float] = field(default_factory=dict)
    kwh_cost: float = 0.0
    pue: float = 1.0

    def mb_cost(self, origin: SiteName, target: SiteName) -> float:
        """Of one megabyte on its way."""
        return 0.0 if origin == target else self.link_cost.get((origin, target), 0.0)

    def energy_cost(self, joules: float) -> float:
        """What the operator pays for it."""
        return joules / 3.6e6 * self.kwh_cost * self.pue

    def cost_a_second(self, node: Node, gpus: int) -> float:
        """c_ng: of a node with so many GPUs in use."""
        return self.energy_cost(node.power_w[gpus]) if node.power_w else 0.0
