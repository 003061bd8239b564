"""Files of a user's own workload: jobs, the cluster that trains them, and times of epochs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ekya.config.keys_in_words import describe_first_problem
from ekya.core.errors import UserError
from ekya.core.unique_tuple import require_distinct_keys
from ekya.core.units import seconds_to_us
from ekya.fleet.described import DescribedPart, read_described
from ekya.fleet.policy.job import Cliff, EpochUs, Growing, Linear, Tardiness, TrainJob, WaitingCost
from ekya.fleet.policy.places import JobName, Node, NodeName, Places, SiteName

GPU = "gpu"
"""Resource of a worker that a node has as many of as it has GPUs."""

_Name = Annotated[str, Field(min_length=1)]
_Amount = Annotated[float, Field(ge=0)]
_EpochS = Mapping[_Name, Mapping[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]]]


class TardinessSpec(DescribedPart):
    """No cost until the due date; then it grows linearly.

    Attributes:
        kind: ``tardiness``.
        due_s: due date, in seconds after the arrival.
        per_s: cost of a second after it.
    """

    kind: Literal["tardiness"]
    due_s: _Amount
    per_s: float = Field(gt=0)


class LinearSpec(DescribedPart):
    """A cost that grows linearly from the arrival on.

    Attributes:
        kind: ``linear``.
        per_s: cost of a second.
        base: cost of a job that takes no time.
    """

    kind: Literal["linear"]
    per_s: _Amount
    base: _Amount = 0.0


class GrowingSpec(DescribedPart):
    """A cost that grows exponentially, e times as much after each 1 / ``rate`` seconds.

    Attributes:
        kind: ``growing``.
        per_s: cost of a job that takes no time, and its priority.
        rate: growth in a second.
    """

    kind: Literal["growing"]
    per_s: _Amount
    rate: _Amount


class CliffSpec(DescribedPart):
    """One cost before a hard deadline, and another after it.

    Attributes:
        kind: ``cliff``.
        before, after: the two costs.
        due_s: deadline, in seconds after the arrival.
    """

    kind: Literal["cliff"]
    before: _Amount
    after: _Amount
    due_s: _Amount


_COSTS: Mapping[str, type[Tardiness] | type[Linear] | type[Growing] | type[Cliff]] = {
    "tardiness": Tardiness,
    "linear": Linear,
    "growing": Growing,
    "cliff": Cliff,
}


class JobSpec(DescribedPart):
    """A training. Policies of ANDREAS read ``epoch_s``, those of Okita the keys from ``chunks`` on.

    Attributes:
        name: of the job.
        arrives_s: time of arrival.
        epochs: number of epochs.
        waiting: cost of the time from arrival to end.
        epoch_s: seconds of an epoch, by kind of node and number of its GPUs.
        allowed: names of the nodes on which it may run; all of them if left out.
        chunks: number of chunks of data at each site.
        chunk_mb: megabytes of a chunk.
        model_mb: megabytes that a worker and a parameter server at another site exchange in a slot.
        worker: what a worker needs, by resource; ``gpu`` is one of them.
        parameter_server: what the parameter server needs, by resource.
        chunks_per_slot: chunks that a worker trains in a slot, through all epochs.
    """

    name: _Name
    arrives_s: _Amount = 0.0
    epochs: int = Field(ge=1)
    waiting: Annotated[TardinessSpec | LinearSpec | GrowingSpec | CliffSpec, Field(discriminator="kind")]
    epoch_s: _EpochS = Field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    chunks: Mapping[_Name, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    chunk_mb: _Amount = 0.0
    model_mb: _Amount = 0.0
    worker: Mapping[_Name, _Amount] = Field(default_factory=dict)
    parameter_server: Mapping[_Name, _Amount] = Field(default_factory=dict)
    chunks_per_slot: float | None = Field(default=None, ge=1)

    def job(self) -> TrainJob:
        """Returns the job as policies see it."""
        waiting: WaitingCost = _COSTS[self.waiting.kind](**self.waiting.model_dump(exclude={"kind"}))
        return TrainJob(
            JobName(self.name),
            seconds_to_us(self.arrives_s),
            self.epochs,
            waiting,
            {SiteName(site): count for site, count in self.chunks.items()},
            self.chunk_mb,
            self.model_mb,
            _epoch_us(self.epoch_s),
            self.worker,
            self.parameter_server,
            self.chunks_per_slot or 0.0,
            frozenset(map(NodeName, self.allowed)),
        )


class JobsSpec(DescribedPart):
    """Schema of the jobs file.

    Attributes:
        slot_s: length of a slot, for Okita's policies.
        slots: from the last arrival on, after which a simulation of Okita's policies ends.
        jobs: at least one.
    """

    slot_s: int | None = Field(default=None, ge=1)
    slots: int = Field(default=150, ge=1)
    jobs: tuple[JobSpec, ...] = Field(min_length=1)


class LinkSpec(DescribedPart):
    """A link between two sites with another cost than the default.

    Attributes:
        origin, target: sites; ``from`` and ``to`` in the file. The cost holds in this direction only.
        mb_cost: cost of a megabyte; None: the default.
    """

    origin: _Name = Field(alias="from")
    target: _Name = Field(alias="to")
    mb_cost: _Amount | None = None


class ClusterLinksSpec(DescribedPart):
    """Links between sites. Simulated transfers take no time of their own.

    Attributes:
        mb_cost: default cost of a megabyte from one site to another.
        ways: links with another cost.
    """

    mb_cost: _Amount = 0.0
    ways: tuple[LinkSpec, ...] = ()


class NodeSpec(DescribedPart):
    """A machine.

    Attributes:
        name: of the machine.
        site: its place; None: its name.
        kind: machines of a kind are equally fast.
        gpus: number of its GPUs.
        power_w: its power with 0, 1, ... GPUs in use; energy is not counted if left out.
        capacity: its other resources, by name.
    """

    name: _Name
    site: _Name | None = None
    kind: _Name
    gpus: int = Field(default=0, ge=0)
    power_w: tuple[_Amount, ...] = ()
    capacity: Mapping[_Name, _Amount] = Field(default_factory=dict)

    def node(self) -> Node:
        """Returns the node as policies see it."""
        site = SiteName(self.site or self.name)
        capacity = {GPU: float(self.gpus), **self.capacity}
        return Node(NodeName(self.name), site, self.kind, self.gpus, self.power_w, capacity)


class ClusterSpec(DescribedPart):
    """Schema of the cluster file.

    Attributes:
        currency: of all costs.
        kwh_cost: price of a kWh.
        pue: energy of the whole site over that of its machines.
        links: between sites.
        nodes: at least one.
    """

    currency: _Name = "cost units"
    kwh_cost: _Amount = 0.0
    pue: float = Field(default=1.0, ge=1)
    links: ClusterLinksSpec = ClusterLinksSpec()
    nodes: tuple[NodeSpec, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class OwnWorkload:
    """The parsed files.

    Attributes:
        jobs: in the order of arrival.
        slot_s: length of a slot; None where the file has none.
        slots: from the last arrival to the end.
    """

    jobs: tuple[TrainJob, ...]
    places: Places
    currency: str
    slot_s: int | None
    slots: int


def load_workload(jobs: Path, cluster: Path) -> OwnWorkload:
    """Reads both files.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    asked, there = read_described(jobs, JobsSpec), read_described(cluster, ClusterSpec)
    for problem in _cluster_problems(there):
        raise UserError(f"{cluster}: {problem}")
    nodes = tuple(node.node() for node in there.nodes)
    ways = {site for way in there.links.ways for site in (way.origin, way.target)}
    sites = {*(str(node.site) for node in nodes), *ways}
    for problem in _job_problems(asked, {str(node.name) for node in nodes}, sites, cluster):
        raise UserError(f"{jobs}: {problem}")
    return OwnWorkload(
        tuple(sorted((job.job() for job in asked.jobs), key=lambda job: (job.arrives_us, job.name))),
        _places(there, nodes, sites),
        there.currency,
        asked.slot_s,
        asked.slots,
    )


class ProfilesSpec(DescribedPart):
    """Schema of a file of job profiles.

    Attributes:
        profiles: seconds of an epoch, by name of the profile, kind of node and number of GPUs.
    """

    profiles: Mapping[_Name, _EpochS]


def load_profiles(path: Path) -> dict[str, EpochUs]:
    """Loads job profiles (ANDREAS §III) by name; the paper's Job Profiler keeps them in MariaDB.

    In seconds: ``{"profiles": {"LSTM-32": {"V100": {"1": 75.0, "2": 49.5}, "TURING": {"1": 135.0}}}}``.

    Raises:
        UserError: the file does not exist or is not a valid profile file.
    """
    raw = _read_object(path)
    try:
        read = ProfilesSpec.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {describe_first_problem(error, raw, ProfilesSpec)}") from error
    return {name: _epoch_us(epoch_s) for name, epoch_s in read.profiles.items()}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=require_distinct_keys)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is no JSON that can be read ({error}); write it anew") from error
    if not isinstance(raw, dict):
        raise UserError(f'{path}: holds no object; it has to begin with {{"profiles": ...')
    return raw


def _epoch_us(epoch_s: _EpochS) -> EpochUs:
    return {
        (kind, gpus): max(1, seconds_to_us(one_s))
        for kind, by_gpus in epoch_s.items()
        for gpus, one_s in by_gpus.items()
    }


def _places(cluster: ClusterSpec, nodes: tuple[Node, ...], sites: set[str]) -> Places:
    usual = cluster.links
    mb_cost = {
        (SiteName(one), SiteName(other)): usual.mb_cost for one, other in permutations(sorted(sites), 2)
    }
    for way in usual.ways:
        if way.mb_cost is not None:
            mb_cost[SiteName(way.origin), SiteName(way.target)] = way.mb_cost
    return Places({node.name: node for node in nodes}, mb_cost, cluster.kwh_cost, cluster.pue)


def _cluster_problems(cluster: ClusterSpec) -> Iterator[str]:
    yield from _twice("nodes", (node.name for node in cluster.nodes))
    for node in cluster.nodes:
        key = f"nodes.{node.name}"
        if node.power_w and len(node.power_w) != node.gpus + 1:
            yield f"{key}.power_w: with {node.gpus} GPUs write {node.gpus + 1} numbers, for 0 and more in use"
        if GPU in node.capacity:
            yield f"{key}.capacity.{GPU}: GPUs are counted by {key}.gpus; remove this key"


def _job_problems(asked: JobsSpec, nodes: set[str], sites: set[str], cluster: Path) -> Iterator[str]:
    yield from _twice("jobs", (job.name for job in asked.jobs))
    for job in asked.jobs:
        for what, named, known in (("allowed", job.allowed, nodes), ("chunks", job.chunks, sites)):
            for name in named:
                if name not in known:
                    there = ", ".join(sorted(known))
                    yield f"jobs.{job.name}.{what}: {cluster} has no {name}; it has {there}"


def _twice(key: str, names: Iterable[str]) -> Iterator[str]:
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield f"{key}: two are called {name}; give each its own name"
