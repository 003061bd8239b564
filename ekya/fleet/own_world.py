"""World of a user's own files: its physics and policies follow from what the jobs have."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.papers.registry import OF_ANDREAS, OF_OKITA
from ekya.fleet.papers.worlds import Draw, WorkloadOptions, WorldKind, andreas_world, okita_world
from ekya.fleet.policy.job import Left, Tardiness
from ekya.fleet.policy.okita.ground import slot_of
from ekya.fleet.policy.okita.placing import most_workers
from ekya.fleet.policy.registry import Terms
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.workload_files import OwnWorkload, load_workload

_BY_STAKE = ("oasis", "oasis-fixed")
"""Policies whose prices are parts of what a job costs after a slot."""

_PLAN_LATENESS = ("andreas", "worth", "edf")
"""Policies that read due dates; the others of ANDREAS also do without."""


def own_kind(jobs: Path, cluster: Path, asked: Sequence[str]) -> WorldKind:
    """Returns the world of a jobs file and a cluster file.

    Policies of ANDREAS place jobs by their times of an epoch, and those of Okita in slots by their data. If
    no policy is asked for, times of an epoch come first.

    Args:
        asked: names of the policies to run; none: all for which the files have what they need.

    Raises:
        UserError: a file is wrong, or lacks what a policy needs; one sentence with file, key and remedy.
    """
    own = load_workload(jobs, cluster)
    by_slots = _by_slots(own, asked)
    lacking = partial(_lacking_of_okita if by_slots else _lacking_of_andreas, own, cluster)
    known = OF_OKITA if by_slots else OF_ANDREAS
    lacks = {name: next(lacking(name), None) for name in known}
    able = tuple(name for name in known if lacks[name] is None)
    for name in asked or known[: 0 if able else 1]:
        if problem := lacks.get(name):
            raise UserError(f"{jobs}: {problem}")
    opened = _open_okita if by_slots else _open_andreas
    return WorldKind(f"{jobs.name} on {cluster.name}", len(own.places.nodes), partial(opened, own), able)


def _by_slots(own: OwnWorkload, asked: Sequence[str]) -> bool:
    slotted = [name for name in asked if name in OF_OKITA]
    others = [name for name in asked if name in OF_ANDREAS]
    if slotted and others:
        raise UserError(
            f"--policy {','.join(asked)}: {slotted[0]} trains in slots and {others[0]} by times of an epoch, "
            "so their costs cannot be compared; run them one after the other"
        )
    return bool(slotted) or not (others or all(job.epoch_us for job in own.jobs))


def _lacking_of_andreas(own: OwnWorkload, cluster: Path, policy: str) -> Iterator[str]:
    """Yields what a policy of ANDREAS needs, and the files lack."""
    for job in own.jobs:
        key = f"jobs.{job.name}"
        if not job.epoch_us:
            yield f"{key}.epoch_s: {policy} needs it; write seconds by kind and number of GPUs"
        there = {
            (node.kind, gpus)
            for node in own.places.nodes.values()
            if not job.allowed or node.name in job.allowed
            for gpus in range(1, node.gpus + 1)
        }
        if there.isdisjoint(job.epoch_us):
            known = ", ".join(f"{gpus} of {kind}" for kind, gpus in sorted(there)) or "none"
            yield f"{key}.epoch_s: {cluster} has no such GPUs for it; write it for one of: {known}"
        if policy == "worth" and not any(gpus == 1 for _, gpus in there & job.epoch_us.keys()):
            yield f"{key}.epoch_s: {policy} needs it for 1 GPU of a kind that {cluster} has; write it"
        if policy in _PLAN_LATENESS and not isinstance(job.waiting, Tardiness):
            yield f"{key}.waiting: {policy} needs a due date; write kind: tardiness, or take fifo or priority"


def _lacking_of_okita(own: OwnWorkload, cluster: Path, policy: str) -> Iterator[str]:
    """Yields what a policy of Okita needs, and the files lack."""
    if own.slot_s is None:
        yield f"slot_s: {policy} needs it; write the seconds of a slot, or epoch_s for every job"
    for site, count in Counter(node.site for node in own.places.nodes.values()).items():
        if count > 1:
            yield f"slot_s: {policy} has one node a site, {cluster} several at {site}; join them"
    states = tuple(JobState(job, Left.all_of(job)) for job in own.jobs)
    ground, tasks = slot_of(FleetView(0, states, own.places), (own.slot_s or 1) * US_PER_S)
    for job, task in zip(own.jobs, tasks, strict=True):
        key = f"jobs.{job.name}"
        for what, there in (
            ("chunks", any(job.chunks.values())),
            ("chunk_mb", job.chunk_mb),
            ("model_mb", job.model_mb),
            ("chunks_per_slot", job.chunks_per_slot),
            ("worker", any(job.worker.values())),
        ):
            if not there:
                yield f"{key}.{what}: {policy} needs more than 0 of it; write it, or epoch_s for all jobs"
        if policy in _BY_STAKE and job.waiting.cost_after(own.slot_s or 1) <= 0:
            yield f"{key}.waiting: {policy} needs a cost from the first slot on; write kind: linear"
        if not most_workers(task, ground.capacity):
            yield (
                f"{key}.worker: {cluster} has no room for a worker and a parameter server, even without "
                "other jobs; write smaller needs, or more capacity"
            )


def _open_andreas(own: OwnWorkload, asked: WorkloadOptions, _done: object) -> Draw:
    return lambda _seed: andreas_world(asked, own.jobs, own.places, own.currency)


def _open_okita(own: OwnWorkload, asked: WorkloadOptions, _done: object) -> Draw:
    if asked.restart_us is not None:
        raise UserError("--restart: in slots an interruption costs the slot; leave it out")
    jobs, slot_us = own.jobs[: asked.jobs], (own.slot_s or 1) * US_PER_S
    until_us = (-(-jobs[-1].arrives_us // slot_us) + own.slots) * slot_us
    terms = Terms(slot_us, until_us, jobs=jobs)
    return lambda _seed: okita_world(terms, own.places, own.currency, until_us)
