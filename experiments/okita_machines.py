"""Okita's testbed (§V.A), drawn from a seed.

Jobs arrive in the first 10 of 30 slots, as in the paper. They have equal parts of their data at each site,
and the remainder at random sites. π is the size of their weights at four bytes; ρ, which was measured there,
is drawn as in the simulation. Needs, links and costs of waiting are those of ``fleet.papers.okita.workload``.
"""

import numpy as np

from ekya.fleet.papers.okita.workload import (
    DISK_GB,
    RESOURCES,
    OkitaSetting,
    OkitaWorkload,
    drawn_needs,
    drawn_places,
    drawn_waiting,
    site_names,
)
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.policy.places import Node, Places

TESTBED_JOBS: tuple[tuple[str, int, float], ...] = (
    ("resnet50-cifar10", 27, 102.0),
    ("resnet101-cifar10", 27, 178.0),
    ("googlenet-caltech101", 115, 54.0),
    ("vgg16-caltech101", 115, 553.0),
    ("alexnet-tinyimagenet", 150, 249.0),
    ("inceptionbn-tinyimagenet", 150, 45.0),
)
"""Table II: name, data chunks, megabytes of weights."""
_TESTBED_SITES, _TESTBED_GPUS, _TESTBED_CHUNK_MB = 9, 1, 2.0

_TESTBED_NEEDS = ((1, 3), (2, 6), (0, 0))
"""Bounds of what a worker, or a parameter server, needs of the resources after GPUs."""

_COME_WITHIN = 10
"""Number of slots, from the first one on, in which jobs arrive."""

_OF_TESTBED = 2
"""Part of the seed, beside those of ``fleet.papers.okita.workload``."""

TESTBED = OkitaSetting(sites=_TESTBED_SITES, jobs=10, slots=30, slot_s=1200)
"""Parameters of §V.A's testbed."""


def of_testbed(seed: int, setting: OkitaSetting = TESTBED) -> OkitaWorkload:
    """Draws a workload of §V.A: nine servers, and jobs drawn from Table II."""
    capacity = dict(zip(RESOURCES, (float(_TESTBED_GPUS), 12.0, 16.0, DISK_GB), strict=True))
    links = drawn_places(setting.sites, seed).link_cost
    nodes = {
        node.name: node
        for node in (
            Node(NodeName(site), site, "rtx2060", _TESTBED_GPUS, capacity=capacity)
            for site in site_names(setting.sites)
        )
    }
    jobs = tuple(_testbed_job(setting, seed, index) for index in range(setting.jobs))
    return OkitaWorkload(setting, jobs, Places(nodes, links))


def _testbed_job(setting: OkitaSetting, seed: int, index: int) -> TrainJob:
    rng = np.random.default_rng([seed, _OF_TESTBED, index])
    name, chunks, model_mb = TESTBED_JOBS[rng.integers(len(TESTBED_JOBS))]
    worker = drawn_needs(rng, _TESTBED_NEEDS, int(rng.integers(0, 2)))
    server = drawn_needs(rng, _TESTBED_NEEDS)
    sites = site_names(setting.sites)
    everywhere, rest = divmod(chunks, len(sites))
    more = {sites[place] for place in rng.permutation(len(sites))[:rest]}
    return TrainJob(
        JobName(f"job-{index:04d}-{name}"),
        int(rng.integers(_COME_WITHIN)) * setting.slot_us,
        epochs=int(rng.integers(20, 31)),
        waiting=drawn_waiting(setting, rng),
        chunks={site: everywhere + (site in more) for site in sites},
        chunk_mb=_TESTBED_CHUNK_MB,
        model_mb=model_mb,
        worker=worker,
        parameter_server=server,
        chunks_per_slot=float(rng.integers(5, 16)),
    )
