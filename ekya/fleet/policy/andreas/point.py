"""One scheduling point as arrays: time and cost of each job in each configuration (§IV.A)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.fleet.policy.places import Node, NodeName, Places
from ekya.fleet.policy.view import FleetView, JobState

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

WAITS = -1
"""Node and configuration of a job that waits."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Interchangeable nodes: of the same kind, size and cost.

    Attributes:
        kind, gpus: of each node.
        names: sorted.
        cost_a_s: c_ng, with 0, 1, ... GPUs in use.
    """

    kind: str
    gpus: int
    names: tuple[NodeName, ...]
    cost_a_s: tuple[float, ...]

    @property
    def base_cost_a_s(self) -> float:
        """Cost per second of a node that is on, without its GPUs, which are taken to cost the same each."""
        if self.gpus == 1:
            return 0.0
        return self.cost_a_s[1] - (self.cost_a_s[-1] - self.cost_a_s[1]) / (self.gpus - 1)


@dataclass(frozen=True, eq=False)
class Point:
    """A scheduling point.

    A configuration is a shelf and a number of GPUs; arrays have jobs as rows and configurations as columns.

    Attributes:
        states: jobs by decreasing pressure, then by name.
        shelves: all nodes.
        shelf, gpus: of each configuration; those of a shelf are consecutive, beginning with one GPU.
        takes_s: t_jng from now on, infinite where a job cannot run in a configuration.
        cost: t_jng c_ng; infinite there too.
        due_in_s: d_j - T_c, infinite where a job is never late.
        weight: ω_j.
        longest_s: time in the slowest of a job's configurations.
        epoch_s: one epoch in each configuration; infinite where a job cannot run in it.
    """

    states: tuple[JobState, ...]
    shelves: tuple[Shelf, ...]
    shelf: Ints
    gpus: Ints
    takes_s: Floats
    cost: Floats
    due_in_s: Floats
    weight: Floats
    longest_s: Floats
    epoch_s: Floats

    @cached_property
    def node_names(self) -> tuple[NodeName, ...]:
        """Names of all nodes, shelf by shelf; other arrays refer to a node by its index here."""
        return tuple(name for shelf in self.shelves for name in shelf.names)

    @cached_property
    def tardiness_s(self) -> Floats:
        """τ_j in each configuration; infinite where the job cannot run in it."""
        due_in_s = np.broadcast_to(self.due_in_s[:, None], self.takes_s.shape)
        late_s = np.where(np.isinf(self.takes_s), np.inf, 0.0)
        return np.maximum(0.0, np.subtract(self.takes_s, due_in_s, out=late_s, where=np.isfinite(due_in_s)))

    @cached_property
    def keys(self) -> Floats:
        """Sort keys by which a job chooses a configuration, the smallest first.

        The cost of configurations in D_j and infinity for the others; the time of all where D_j is empty.
        """
        in_time = np.less(self.takes_s, self.due_in_s[:, None])
        some = np.any(in_time, axis=1, keepdims=True)
        return np.where(some, np.where(in_time, self.cost, np.inf), self.takes_s)

    @cached_property
    def single(self) -> Ints:
        """Index of each shelf's configuration with one GPU."""
        return np.flatnonzero(self.gpus == 1)

    @cached_property
    def all_gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return sum(shelf.gpus * len(shelf.names) for shelf in self.shelves)

    @cached_property
    def shared_cost_a_s(self) -> Floats:
        """Cost per second of each configuration as its part of a fully used node."""
        full = [self.shelves[number].cost_a_s[-1] / self.shelves[number].gpus for number in self.shelf]
        return np.array(full) * self.gpus

    @property
    def node_gpus(self) -> list[int]:
        """GPUs of each node."""
        return [shelf.gpus for shelf in self.shelves for _ in shelf.names]

    @property
    def waiting(self) -> Ints:
        """Configurations, or nodes, of a schedule in which all jobs wait."""
        return np.full(len(self.states), WAITS, dtype=np.intp)

    @cached_property
    def places_now(self) -> tuple[Ints, Ints]:
        """Present configuration and node of each job, or ``WAITS``."""
        config, node = self.waiting, self.waiting
        nodes = {
            name: (at, begin, shelf.gpus)
            for begin, shelf in zip(self.single, self.shelves, strict=True)
            for at, name in enumerate(shelf.names, self.node_names.index(shelf.names[0]))
        }
        for row, state in enumerate(self.states):
            part = None if state.assignment is None else state.assignment.parts[0]
            if part is not None and part.node in nodes:
                at, begin, gpus = nodes[part.node]
                if 0 < part.gpus <= gpus:
                    config[row], node[row] = begin + part.gpus - 1, at
        return config, node

    def nodes_of(self, number: int) -> tuple[int, int]:
        """Returns the index of a shelf's first node, and the first index after the shelf."""
        begin = sum(len(shelf.names) for shelf in self.shelves[:number])
        return begin, begin + len(self.shelves[number].names)


def point_of(view: FleetView) -> Point:
    """Converts a view to arrays; the order of its jobs does not matter."""
    shelves = shelves_of(view.places)
    columns = [(number, gpus) for number, shelf in enumerate(shelves) for gpus in range(1, shelf.gpus + 1)]
    shelf = np.array([number for number, _ in columns], dtype=np.intp)
    gpus = np.array([gpus for _, gpus in columns], dtype=np.intp)
    epochs = np.array([max(1e-9, state.left.epochs - state.left.begun) for state in view.jobs])
    configs = [(shelves[number].kind, count) for number, count in columns]
    epoch_us = np.array([[state.job.epoch_us.get(one, np.inf) for one in configs] for state in view.jobs])
    takes_s = epochs[:, None] * epoch_us.reshape(len(epochs), len(columns)) / US_PER_S
    due_us = [state.job.due_us for state in view.jobs]
    due_in_s = np.array([np.inf if due is None else (due - view.now_us) / US_PER_S for due in due_us])
    fastest_s = takes_s.min(axis=1, initial=np.inf)
    pressure_s = np.subtract(fastest_s, due_in_s, out=-due_in_s, where=np.isfinite(due_in_s))
    names = [state.job.name for state in view.jobs]
    rows = sorted(range(len(names)), key=lambda row: (-pressure_s[row], names[row]))
    takes_s = takes_s[rows]
    a_second = np.array([shelves[number].cost_a_s[count] for number, count in columns])
    finite = np.isfinite(takes_s)
    return Point(
        tuple(view.jobs[row] for row in rows),
        shelves,
        shelf,
        gpus,
        takes_s,
        np.where(finite, takes_s, 0.0) * a_second + np.where(finite, 0.0, np.inf),
        due_in_s[rows],
        np.array([view.jobs[row].job.waiting.per_s for row in rows]),
        np.where(finite, takes_s, 0.0).max(axis=1, initial=0.0),
        takes_s / epochs[rows][:, None],
    )


def shelves_of(places: Places) -> tuple[Shelf, ...]:
    """Groups interchangeable nodes into shelves, sorted."""
    alike: dict[tuple[str, int, tuple[float, ...]], list[Node]] = {}
    for node in places.nodes.values():
        if node.gpus:
            alike.setdefault((node.kind, node.gpus, node.power_w), []).append(node)
    return tuple(
        Shelf(
            kind,
            gpus,
            tuple(sorted(node.name for node in nodes)),
            tuple(places.cost_a_second(nodes[0], used) for used in range(gpus + 1)),
        )
        for (kind, gpus, _), nodes in sorted(alike.items(), key=lambda one: one[0])
    )
