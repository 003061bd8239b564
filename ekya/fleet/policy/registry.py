"""Registry of the tiers that decide about loans, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.market import Decider
from ekya.fleet.policy.most_per_unit import MostPerUnit
from ekya.fleet.policy.one_node import OneNode

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
