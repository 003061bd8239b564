"""Time and memory of a decision about loans, for all tiers.

    python experiments/fleet_decisions.py
    python experiments/fleet_decisions.py --jobs 250,500,1000 --sites 100 --seeds 3
    python experiments/fleet_decisions.py --tier net,andreas --json -

Each seed draws a market: servers that could lend up to half a GPU at a rising price, links, and far more
offers than there is room for. All tiers decide about the same markets. Times are processor seconds of one
thread, the longest of all seeds; memory is the peak beyond the market itself, in a decision of its own since
measuring it takes time.
"""

import os

# Must be set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from time import process_time
from typing import Annotated

import typer
from recipe import Json, run
from rich.table import Table

from ekya.cli.output import output
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.speed import LINEAR
from ekya.core.units import US_PER_S, StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.market import Market
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.tiers import TIERS

_UNITS, _STEP_MILLI = 5, 100
_WINDOW_US = 200 * US_PER_S
_HEAD_MB = 0.13


@dataclass(frozen=True, slots=True)
class Call:
    """Decisions of a tier about markets of one size.

    Attributes:
        took_s: processor time of the longest.
        peak_mb: most memory of one.
        loans: mean number of loans.
    """

    tier: str
    jobs: int
    sites: int
    uneven: bool
    took_s: float
    peak_mb: float
    loans: float


def drawn(jobs: int, sites: int, uneven: bool, seed: int) -> Market:
    """Draws a market; links that are ``uneven`` have 1 to 25 MB/s instead of 12.5 each."""
    chance = Random(seed)  # noqa: S311
    names = [SiteName(f"site-{place}") for place in range(sites)]
    rooms = [
        Room(
            name,
            _STEP_MILLI,
            tuple(sorted(chance.uniform(0.0, 0.004) * units for units in range(1, _UNITS + 1))),
            LINEAR,
        )
        for name in names
    ]
    ways = {(one, other): chance.uniform(1.0, 25.0) for one in names for other in names if one != other}
    offers = [_offer(chance, chance.choice(names), f"cam-{place}") for place in range(jobs)]
    return Market(0, tuple(offers), (), tuple(rooms), Links(ways if uneven else {}), seed)


def _offer(chance: Random, site: SiteName, stream: str) -> Offer:
    return Offer(
        site=site,
        stream=StreamId(stream),
        config=RetrainConfig(10, 16, 64, 0, 1.0),
        epochs=10,
        gpu_s=chance.uniform(2.0, 30.0),
        gain=chance.uniform(0.01, 0.3),
        at_home=0.0,
        now_us=0,
        until_us=_WINDOW_US,
        crops=400,
        crops_mb=1.2,
        model_mb=45.0,
        trained_mb=_HEAD_MB,
        back_mb=2 * _HEAD_MB,
    )


def measured(tier: str, jobs: int, sites: int, uneven: bool, seeds: int) -> Call:
    """Measures the decisions of a tier."""
    took_s, loans, peak = [], [], 0
    for seed in range(seeds):
        market = drawn(jobs, sites, uneven, seed)
        began_s = process_time()
        deal = TIERS[tier].decide(market)
        took_s.append(process_time() - began_s)
        loans.append(len(deal.loans))
        if not seed:
            tracemalloc.start()
            TIERS[tier].decide(market)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    return Call(tier, jobs, sites, uneven, max(took_s), peak / 1e6, sum(loans) / seeds)


def table_of(calls: Sequence[Call]) -> Table:
    """Returns a row for each tier and a pair of columns for each market."""
    markets = list(dict.fromkeys((one.jobs, one.sites, one.uneven) for one in calls))
    table = Table(title="seconds and megabytes of a decision, and loans")
    table.add_column("tier")
    for jobs, sites, uneven in markets:
        table.add_column(
            f"{jobs} offers, {sites} sites, {'uneven' if uneven else 'even'} links", justify="right"
        )
    for tier in dict.fromkeys(one.tier for one in calls):
        own = {(one.jobs, one.sites, one.uneven): one for one in calls if one.tier == tier}
        cells = (
            f"{own[key].took_s:.2f} s, {own[key].peak_mb:.0f} MB, {own[key].loans:.0f}" for key in markets
        )
        table.add_row(tier, *cells)
    return table


def main(
    jobs: Annotated[str, typer.Option(help="Numbers of offers, with commas.")] = "1000",
    sites: Annotated[int, typer.Option(min=2, help="Servers.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Markets of each size.")] = 3,
    tier: Annotated[str, typer.Option(help="With commas; all if left out.")] = ",".join(TIERS),
    json_to: Json = None,
) -> None:
    """Time decisions about loans."""
    names = tier.split(",")
    if unknown := sorted({*names} - TIERS.keys()):
        raise UserError(f"--tier: there is no {unknown[0]}; there are {', '.join(TIERS)}")
    if not all(count.isdecimal() and int(count) for count in jobs.split(",")):
        raise UserError(f"--jobs: {jobs} is no list of numbers; write 250,500,1000")
    with output(json_to) as ready:
        sizes = [(int(count), uneven) for count in jobs.split(",") for uneven in (False, True)]
        calls = [measured(name, count, sites, uneven, seeds) for name in names for count, uneven in sizes]
        ready.report({"recipe": "fleet_decisions", "calls": [asdict(one) for one in calls]})
        ready.console.print(table_of(calls))


if __name__ == "__main__":
    run(main, "python experiments/fleet_decisions.py --jobs 250,500,1000 --json - | jq .calls")
