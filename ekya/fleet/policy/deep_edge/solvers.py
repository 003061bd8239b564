"""Registry of Deep-Edge's solvers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import Solver

SOLVERS: Mapping[str, Solver] = MappingProxyType({"deep-edge": Heuristic(), "deep-edge-joint": Joint()})
"""Solvers by name: the paper's, and ours."""


def of_measured_shares(solver: Solver, shares_milli: Collection[int]) -> Solver:
    """Returns the solver, limited to profiled shares where it throttles workers."""
    if not isinstance(solver, Joint):
        return solver
    return replace(solver, shares_milli=tuple(sorted({FULL_GPU_MILLI, *shares_milli}, reverse=True)))


def holds_back(solver: Solver) -> bool:
    """Returns whether a solver throttles workers, so that it needs profiles of throttled trainings."""
    return isinstance(solver, Joint) and min(solver.shares_milli) < FULL_GPU_MILLI
