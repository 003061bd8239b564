"""Workloads of Okita's testbed (§V.A): nine servers with one GPU each, and jobs of Table II.

Jobs arrive in the first ten of thirty slots, as in the paper. They have equal parts of their data at each
site, and the remainder at random sites. π is the size of their weights at four bytes; ρ, which was measured
there, is drawn as in the simulation.
"""

import numpy as np

from ekya.fleet.papers.okita.workload import (
    DISK_GB,
    RESOURCES,
    OkitaSetting,
    OkitaWorkload,
    draw_needs,
    draw_places,
    draw_waiting,
    list_sites,
)
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import JobName, Node, NodeName, Places

TESTBED = OkitaSetting(sites=9, jobs=10, slots=30, slot_s=1200)
COME_WITHIN = 10
"""Slots, from the first one on, in which jobs arrive."""

JOBS: tuple[tuple[str, int, float], ...] = (
    ("resnet50-cifar10", 27, 102.0),
    ("resnet101-cifar10", 27, 178.0),
    ("googlenet-caltech101", 115, 54.0),
    ("vgg16-caltech101", 115, 553.0),
    ("alexnet-tinyimagenet", 150, 249.0),
    ("inceptionbn-tinyimagenet", 150, 45.0),
)
"""Table II: name, data chunks, megabytes of weights."""
CHUNK_MB = 2.0
NEEDS = ((1, 3), (2, 6), (0, 0))
"""Bounds of what a worker, or a parameter server, needs of the resources after GPUs."""

_OF_TESTBED = 2
"""Apart from the draws of the simulation."""


def of_testbed(setting: OkitaSetting, seed: int) -> OkitaWorkload:
    """Draws a workload of §V.A."""
    capacity = dict(zip(RESOURCES, (1.0, 12.0, 16.0, DISK_GB), strict=True))
    links = draw_places(setting.sites, seed).link_cost
    nodes = {
        NodeName(site): Node(NodeName(site), site, "rtx2060", 1, capacity=capacity)
        for site in list_sites(setting.sites)
    }
    jobs = tuple(_job(setting, seed, index) for index in range(setting.jobs))
    return OkitaWorkload(setting, jobs, Places(nodes, links))


def _job(setting: OkitaSetting, seed: int, index: int) -> TrainJob:
    rng = np.random.default_rng([seed, _OF_TESTBED, index])
    name, chunks, model_mb = JOBS[rng.integers(len(JOBS))]
    worker = draw_needs(rng, NEEDS, int(rng.integers(0, 2)))
    server = draw_needs(rng, NEEDS)
    sites = list_sites(setting.sites)
    everywhere, rest = divmod(chunks, len(sites))
    more = {sites[place] for place in rng.permutation(len(sites))[:rest]}
    # Arguments are drawn in this order.
    return TrainJob(
        JobName(f"job-{index:04d}-{name}"),
        int(rng.integers(COME_WITHIN)) * setting.slot_us,
        epochs=int(rng.integers(20, 31)),
        waiting=draw_waiting(setting, rng),
        chunks={site: everywhere + (site in more) for site in sites},
        chunk_mb=CHUNK_MB,
        model_mb=model_mb,
        worker=worker,
        parameter_server=server,
        chunks_per_slot=float(rng.integers(5, 16)),
    )
