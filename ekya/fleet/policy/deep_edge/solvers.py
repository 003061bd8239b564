"""Deep-Edge's solvers by name."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.fair import Fair
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import Solver

SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {
        "deep-edge": Heuristic(),
        "deep-edge-joint": Joint(),
        "fair": Fair(),
        "fair-kept": Fair(keeps_deadlines=True),
    }
)
"""The paper's, ours, and fairness: blind to deadlines, or leaving out who would miss one."""


def of_measured_shares(solver: Solver, shares_milli: Collection[int]) -> Solver:
    """The same one; where it holds workers back, only to shares at which somebody was profiled."""
    if not isinstance(solver, Joint):
        return solver
    return replace(solver, shares_milli=tuple(sorted({FULL_GPU_MILLI, *shares_milli}, reverse=True)))


def holds_back(solver: Solver) -> bool:
    """Whether it needs to know of trainings that are held back."""
    return isinstance(solver, Joint) and min(solver.shares_milli) < FULL_GPU_MILLI
