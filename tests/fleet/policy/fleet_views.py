"""Views that every fleet policy can decide on, whatever its paper, and the policies themselves."""

from dataclasses import replace
from random import Random

from ekya.fleet.papers.registry import PLAYED, Terms
from ekya.fleet.policy.job import Growing, Left, Linear, Tardiness, TrainJob
from ekya.fleet.policy.places import BackgroundApp, JobName, Node, NodeName, NodeState, Places, SiteName
from ekya.fleet.policy.view import FleetView, JobState

S = 1_000_000
SLOT_US = 1800 * S
SAMPLE_S = {"fast": 0.05, "slow": 0.1}


class Estimates:
    """Deep-Edge's estimates for machines of both kinds, in short formulas."""

    def compute_s(self, worker):
        return SAMPLE_S[worker.kind] * (1 + worker.state.cpu) * 1000 / worker.share_milli

    def update_s(self, workers, parameter_server):
        return [0.1 * len(workers) * (1 + parameter_server.cpu)] * len(workers)

    def state_after(self, worker):
        cpu = worker.state.cpu + 0.4 * worker.share_milli / 1000
        return NodeState(cpu, 1.0, worker.state.mem + worker.batch / 100)

    def exec_s(self, kind, app, state):
        return 0.2 * state.cpu


def made(name, view):
    """Returns a new policy, on the terms of a view."""
    return PLAYED[name](Terms(SLOT_US, estimates=Estimates()))


def drawn(sites, jobs, seed):
    """Draws a view with waiting jobs, some of which were profiled on one kind of node alone."""
    random = Random(seed)
    nodes = [_node(random, place) for place in range(sites)]
    names = [node.site for node in nodes]
    links = {(one, other): random.uniform(0.02, 0.08) for one in names for other in names if one != other}
    states = [_state(random, place, nodes) for place in range(jobs)]
    states.sort(key=lambda state: (state.job.arrives_us, state.job.name))
    places = Places({node.name: node for node in nodes}, links, kwh_cost=0.172, pue=1.33)
    return FleetView(6 * SLOT_US, tuple(states), places, seed)


def _node(random, place):
    kind, gpus = random.choice(["fast", "slow"]), random.randint(1, 4)
    each_w = {"fast": 230.0, "slow": 65.0}[kind]
    return Node(
        NodeName(f"node-{place:03}"),
        SiteName(f"site-{place:03}"),
        kind,
        gpus,
        (0.0, *(100.0 + each_w * used for used in range(1, gpus + 1))),
        {"gpu": float(gpus), "cpu": float(random.randint(8, 16)), "ram": 64.0},
        NodeState(random.uniform(0, 0.9), 0.0, random.uniform(0, 0.9)),
        random.choice([(), (BackgroundApp("sift", 0.2),)]),
    )


def _state(random, place, nodes):
    epoch_s = random.choice([20.0, 60.0, 240.0])
    waiting = random.choice(
        [
            Tardiness(random.uniform(100, 9000), random.choice([1e-4, 5e-4])),
            Growing(random.uniform(15, 80), 0.25 / 1800),
            Linear(random.uniform(0.01, 0.05), 100.0),
        ]
    )
    job = TrainJob(
        JobName(f"job-{random.randrange(10**6):06}-{place}"),
        random.randint(0, 5) * SLOT_US,
        random.randint(1, 30),
        waiting,
        chunks={node.site: random.randint(2, 20) for node in nodes},
        chunk_mb=random.uniform(20, 60),
        model_mb=random.uniform(30, 575),
        epoch_us={
            (kind, gpus): round(epoch_s * slower / gpus**0.65 * S)
            for kind, slower in (("fast", 1.0), ("slow", 1.8))
            for gpus in range(1, 5)
        },
        worker={"gpu": float(random.randint(0, 1)), "cpu": float(random.randint(1, 3)), "ram": 2.0},
        parameter_server={"cpu": float(random.randint(1, 3)), "ram": 4.0},
        chunks_per_slot=float(random.randint(5, 15)),
    )
    if random.random() < 0.2:
        kind = random.choice(nodes).kind
        job = replace(job, epoch_us={one: us for one, us in job.epoch_us.items() if one[0] == kind})
    return JobState(job, Left.all_of(job))


def later(name, view, seed):
    """Returns a view a slot after a policy's decision on the first half of the jobs, with the others."""
    half = (len(view.jobs) + 1) // 2
    decision = made(name, view).decide(replace(view, jobs=view.jobs[:half]))
    states = []
    for state in view.jobs[:half]:
        assignment, left = decision.assignment_of(state.job.name), state.left
        if assignment is not None:
            left = Left(max(1, left.epochs - 1), _rest(left.chunks, assignment.moves))
        if any(left.chunks.values()):
            states.append(JobState(state.job, left, assignment))
    return replace(view, now_us=view.now_us + SLOT_US, jobs=(*states, *view.jobs[half:]))


def _rest(chunks, moves):
    rest = dict(chunks)
    for (origin, _), sent in moves.items():
        rest[origin] -= sent
    return rest
