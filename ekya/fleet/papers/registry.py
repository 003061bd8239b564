"""Registry of all policies that can play in the papers' worlds: those of ``fleet.policy``, and baselines."""

from collections.abc import Mapping
from types import MappingProxyType

from ekya.fleet.papers.andreas.first_principles import EDF, FIFO, PRIORITY
from ekya.fleet.papers.deep_edge.compared import Fair
from ekya.fleet.papers.okita.fixed import Drf, OkitaFifo
from ekya.fleet.papers.okita.oasis import Bounds, Oasis
from ekya.fleet.policy.registry import EDGE_POLICIES, POLICIES, Make, edge_policy

BASELINES: Mapping[str, Make] = MappingProxyType(
    {
        "fifo": lambda _: FIFO,
        "edf": lambda _: EDF,
        "priority": lambda _: PRIORITY,
        "okita-fifo": lambda terms: OkitaFifo(terms.slot_us),
        "drf": lambda terms: Drf(terms.slot_us),
        "oasis": lambda terms: Oasis(terms.slot_us),
        "oasis-fixed": lambda terms: Oasis(terms.slot_us, Bounds.over_jobs(terms.jobs, terms.slot_us)),
        "fair": lambda terms: edge_policy("fair", Fair(), terms),
        "fair-kept": lambda terms: edge_policy("fair-kept", Fair(keeps_deadlines=True), terms),
    }
)
"""Policies with which the papers compare theirs."""

PLAYED: Mapping[str, Make] = MappingProxyType({**POLICIES, **BASELINES})

OF_ANDREAS = ("andreas", "worth", "fifo", "edf", "priority")
OF_OKITA = ("okita", "okita-joint", "okita-fifo", "drf", "oasis", "oasis-fixed")
OF_DEEP_EDGE = (*EDGE_POLICIES, "fair", "fair-kept")
"""Names of the policies that can play in each paper's worlds; the paper's own comes first."""
