"""Registry of fleet policies and tiers, by name. The papers' baselines are in ``fleet.papers.registry``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.worth import Worth
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import EdgePolicy, Solver
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.market import Decider
from ekya.fleet.policy.most_per_unit import MostPerUnit
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.one_node import OneNode
from ekya.fleet.policy.view import FleetPolicy


@dataclass(frozen=True, slots=True)
class Terms:
    """Facts of a fleet from which policies are made. Each policy uses those of its paper.

    Attributes:
        slot_us: length of a slot (Okita).
        until_us: T, end of the last slot (Okita); None: no limit.
        restart_us: time in which a moved job starts again (ours for ANDREAS); None: moves cost nothing.
        estimates: of times and states (Deep-Edge, which cannot be made without).
        limits: of batches, memory and deadlines (Deep-Edge).
        shares_milli: to which trainings were throttled in their profiles (ours for Deep-Edge).
        jobs: all jobs, also future ones, for baselines that know them.
    """

    slot_us: int = 1800 * US_PER_S
    until_us: int | None = None
    restart_us: int | None = 60 * US_PER_S
    estimates: EdgeEstimates | None = None
    limits: EdgeLimits = ANY_EDGE
    shares_milli: tuple[int, ...] = tuple(range(100, FULL_GPU_MILLI, 100))
    jobs: tuple[TrainJob, ...] = ()


Make = Callable[[Terms], FleetPolicy]


def edge_policy(name: str, solver: Solver, terms: Terms) -> EdgePolicy:
    """Returns the policy of one of Deep-Edge's solvers.

    Raises:
        ValueError: there are no estimates.
    """
    if terms.estimates is None:
        raise ValueError(f"{name} needs estimates of times and states")
    return EdgePolicy(name, solver, terms.estimates, terms.limits)


def _worth(terms: Terms) -> Worth:
    if terms.restart_us is None:
        return Worth(moving_s=0.0, lost_epochs=0.0)
    return Worth(moving_s=us_to_seconds(terms.restart_us))


def _edge_joint(terms: Terms) -> EdgePolicy:
    shares = tuple(sorted({FULL_GPU_MILLI, *terms.shares_milli}, reverse=True))
    return edge_policy("deep-edge-joint", Joint(shares), terms)


POLICIES: Mapping[str, Make] = MappingProxyType(
    {
        "andreas": lambda _: Andreas(),
        "worth": _worth,
        "okita": lambda terms: Okita(terms.slot_us, until_us=terms.until_us),
        "okita-joint": lambda terms: OkitaJoint(terms.slot_us, until_us=terms.until_us),
        "deep-edge": lambda terms: edge_policy("deep-edge", Heuristic(), terms),
        "deep-edge-joint": _edge_joint,
    }
)
"""The papers' policies to the letter, and ours: ``worth`` for ANDREAS, and those that end in joint."""

EDGE_POLICIES = ("deep-edge", "deep-edge-joint")
"""Deep-Edge's policies."""

THROTTLING = frozenset({"deep-edge-joint"})
"""Policies that throttle workers, so that they need profiles of throttled trainings."""


_PERIOD_US = 10_000_000
"""Longest time until ANDREAS decides again; the paper's ten minutes, for jobs of minutes instead of hours."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A policy for loans.

    Attributes:
        decide: about all offers and all that runs.
        every_us: longest time until it decides again; None: it decides only when something has changed.
    """

    decide: Decider
    every_us: int | None = None


TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        "andreas": Tier(OneNode(Andreas(period_s=_PERIOD_US / 1e6)), _PERIOD_US),
        "net": Tier(MostPerUnit()),
    }
)
"""Tiers by name. Okita and Deep-Edge spread a training over several servers, which loans do not."""
