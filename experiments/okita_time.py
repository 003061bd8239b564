"""Decision time of Okita over a whole run (Okita's Figure 13).

    python experiments/okita_time.py
    python experiments/okita_time.py --full

The figure shows processor time, so that other load on the machine does not count; wall time is reported
beside it. Everything runs on one thread. The paper ran MATLAB on a laptop's Core i5-7300HQ.
"""

import os

# Must be set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from okita_played import STYLES, draw_lines, mean, play_all, sized, tagged
from recipe import RESULTS, Beside, Finding, Full, Json, Out, Seed, channel, legend, new_figure, run

from ekya.fleet.papers.okita.workload import OkitaSetting, simulation
from ekya.results.report.themes import LIGHT

DEFAULT = OkitaSetting()


def found(rows: Sequence[dict[str, Any]]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    return Finding(
        name="okita_time",
        title="Okita's Figure 13: time of a whole run",
        rows=rows,
        beside=[
            Beside(
                f"50 sites, 100 jobs: seconds{how}",
                paper,
                {name: f"{mean(rows, key, policy=name, sites=50, jobs=100):.1f}" for name in STYLES},
            )
            for how, key, paper in ((" of the process", "cpu_s", ""), (" by the clock", "run_s", "under 50"))
        ],
        why="All sites of the parameter server and all numbers of workers are one array each; a number's "
        "transfers are only worked out where a lower bound leaves it a chance. The engine's checks are "
        "included.",
        figure=_drawn(rows),
    )


def _drawn(rows: Sequence[dict[str, Any]]) -> Figure:
    sites = sorted({row["sites"] for row in rows})
    figure, axes = new_figure(len(sites), 1, 2.8, sharey=True)
    for panel, count in zip(axes[0], sites, strict=True):
        draw_lines(panel, [row for row in rows if row["sites"] == count], "jobs", "cpu_s")
        panel.axhline(5, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)))
        panel.set_xlabel("jobs (dashes: what we want, 5 s)", fontsize=9, color=LIGHT.ink)
        panel.set_title(f"{count} sites: seconds", fontsize=10, loc="left", color=LIGHT.ink)
    legend(figure, axes[0][0])
    return figure


def main(full: Full = False, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS) -> None:
    """Time whole runs: Okita's Figure 13."""
    with channel(json_to, out) as tell:
        sizes = [(sites, jobs) for sites in ((20, 50, 80) if full else (50,)) for jobs in (50, 75, 100)]
        seeds = range(seed, seed + (3 if full else 1))
        rows = []
        with tell.steps("Time", len(sizes) * len(seeds) * len(STYLES)) as step:
            for sites, jobs in sizes:
                setting = sized(DEFAULT, sites=sites, jobs=jobs)
                rows += tagged(play_all(simulation, setting, seeds, step), sites=sites, jobs=jobs)
        tell.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/okita_time.py", "python experiments/okita_time.py --full")
