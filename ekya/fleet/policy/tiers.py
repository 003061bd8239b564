"""Registry of what decides about loans between servers."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.fitted import FittedHosts
from ekya.fleet.policy.market import Decider
from ekya.fleet.policy.most_per_unit import MostPerUnit
from ekya.fleet.policy.near_data import NearData
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.one_node import OneNode
from ekya.fleet.policy.splitting import InOrderOfArrival

_PERIOD_US = 10_000_000
"""Longest time until ANDREAS decides again; the paper's ten minutes, for jobs of minutes instead of hours."""

_DEPLOYED_US = 2_000_000
"""Longest time until Okita deploys all trainings anew."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A policy for loans.

    Attributes:
        decide: about all offers and all that runs.
        every_us: longest time until it decides again; None: it decides only when something has changed.
    """

    decide: Decider
    every_us: int | None = None


def tiers_with(fitted: FittedHosts | None) -> Mapping[str, Tier]:
    """Returns the tiers by name; Deep-Edge's sees profiled hosts as fitted models do."""
    return {
        "andreas": Tier(OneNode(Andreas(period_s=_PERIOD_US / 1e6)), _PERIOD_US),
        "deep-edge": Tier(InOrderOfArrival(Heuristic(), fitted)),
        "okita": Tier(NearData(Okita), _DEPLOYED_US),
        "net": Tier(MostPerUnit()),
    }


TIERS: Mapping[str, Tier] = MappingProxyType(tiers_with(None))
"""Tiers without models; the papers' algorithms to the letter are ``andreas``, ``deep-edge`` and ``okita``."""
