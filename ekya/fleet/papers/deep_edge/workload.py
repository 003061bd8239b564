"""Deep-Edge's random experiments (§V.C), and the data points of its estimators (§V.B, Table I).

Every worker runs SIFT with a deadline of 200 ms, and random stressors under which SIFT keeps the deadline.
Seeds and ranges were fixed before any policy was run on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekya.core.units import FULL_GPU_MILLI, seconds_to_us
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.laws import BATCH_MAX, BATCH_MIN, NANO, PI, SERVER, SIFT, TX2, WORKERS
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining, ProfilePoint
from ekya.fleet.policy.job import Linear, TrainJob
from ekya.fleet.policy.places import BackgroundApp, JobName, Node, NodeName, NodeState, Places, SiteName
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.engine import Stage

SEEDS = tuple(range(2020, 2140))
"""Seeds of the 120 experiments."""

PROFILE_SEED = 1386
"""Seed of the data points."""

POINTS = {TX2: 450, NANO: 1650, PI: 750}
"""Numbers of training and test points together, as in Table I."""

SAMPLES = 3855
"""Samples of Caltech-256 in the paper's update of Inception."""

SITE = SiteName("edge")
DEADLINE_S = 0.2

STRESS_CHANCE = 0.5
STRESS_CPU, STRESS_GPU, STRESS_MEM, STRESS_SERVER = 0.75, 0.9, 0.25, 0.6
"""Most utilisation that a stressor adds; it runs with probability ``STRESS_CHANCE``, at a uniform level."""

NOISE_COMPUTE, NOISE_UPDATE, NOISE_EXEC = 0.02, 0.06, 0.015
NOISE_CPU, NOISE_GPU, NOISE_MEM = 0.03, 0.01, 0.01
"""Relative standard deviations of a single measurement."""

_TRAINS, _SERVES = {"trains": 1.0}, {"serves": 1.0}


@dataclass(frozen=True, slots=True)
class EdgeExperiment:
    """One update of a model on a loaded cluster.

    Attributes:
        places: machines with their measured states.
        truth: true states of the machines.
    """

    seed: int
    places: Places
    truth: dict[NodeName, NodeState]
    job: TrainJob


def edge_experiment(
    seed: int, kinds: tuple[str, ...] = (TX2, NANO, NANO, NANO), epochs: int = 1
) -> EdgeExperiment:
    """Draws one of the 120 experiments, or one on other machines.

    Args:
        kinds: of the workers; the parameter server is a Pi.
        epochs: numEpoch.
    """
    rng = np.random.default_rng([seed, 0])
    apps = (BackgroundApp(SIFT, DEADLINE_S),)
    nodes, truth = {}, {}
    for place, kind in enumerate(kinds):
        name = NodeName(f"{kind}-{place}")
        truth[name] = _loaded(kind, rng)
        nodes[name] = Node(name, SITE, kind, capacity=_TRAINS, state=measured(truth[name], rng), apps=apps)
    name = NodeName("server")
    truth[name] = loaded_server(rng)
    nodes[name] = Node(name, SITE, PI, capacity=_SERVES, state=measured(truth[name], rng))
    job = TrainJob(
        JobName(f"update-{seed}"),
        0,
        epochs,
        Linear(1.0, 0.0),
        chunks={SITE: SAMPLES},
        worker=_TRAINS,
        parameter_server=_SERVES,
    )
    return EdgeExperiment(seed, Places(nodes), truth, job)


def profile_points(
    kind: str, count: int, seed: int = PROFILE_SEED, shares_milli: tuple[int, ...] = (1000,)
) -> list[ProfilePoint]:
    """Draws data points of a kind of machine as the Profiler would measure them: the laws with noise.

    Args:
        shares_milli: to which the training is throttled; drawn for each point.
    """
    rng = np.random.default_rng([seed, 1, sorted(WORKERS).index(kind), len(shares_milli)])
    points = list[ProfilePoint]()
    while len(points) < count:
        state, pi = _stressed(kind, rng), loaded_server(rng)
        batch, share = int(rng.integers(BATCH_MIN, BATCH_MAX + 1)), int(rng.choice(shares_milli))
        training = EdgeTraining(kind, state, batch, share)
        after = laws.state_after(training)
        if after.mem > 1:
            continue
        others = [companion(rng) for _ in range(rng.integers(0, 4))]
        points.append(
            ProfilePoint(
                kind,
                measured(state, rng),
                batch,
                (batch, *(other.batch for other in others)),
                measured(pi, rng),
                share,
                laws.compute_s(training) * _noise(NOISE_COMPUTE, rng),
                laws.update_s([training, *others], pi)[0] * _noise(NOISE_UPDATE, rng),
                measured(after, rng),
                SIFT,
                laws.exec_s(kind, SIFT, after) * _noise(NOISE_EXEC, rng),
            )
        )
    return points


def companion(rng: np.random.Generator) -> EdgeTraining:
    """Draws another worker of a training."""
    kind = str(rng.choice(sorted(WORKERS)))
    return EdgeTraining(kind, _stressed(kind, rng), int(rng.integers(BATCH_MIN, BATCH_MAX + 1)))


def _stressed(kind: str, rng: np.random.Generator) -> NodeState:
    rest = WORKERS[kind].rest
    return NodeState(
        rest.cpu + _stress(STRESS_CPU, rng),
        rest.gpu + _stress(STRESS_GPU, rng),
        rest.mem + _stress(STRESS_MEM, rng),
    )


def _loaded(kind: str, rng: np.random.Generator) -> NodeState:
    """Draws a stressed state in which the background application keeps its deadline."""
    while True:
        state = _stressed(kind, rng)
        if laws.exec_s(kind, SIFT, state) <= DEADLINE_S:
            return state


def loaded_server(rng: np.random.Generator) -> NodeState:
    """Draws a state of the parameter server, which may be stressed."""
    rest = SERVER.rest
    return replace(rest, cpu=rest.cpu + _stress(STRESS_SERVER, rng))


def _stress(most: float, rng: np.random.Generator) -> float:
    level = most * float(rng.random())
    return level if rng.random() < STRESS_CHANCE else 0.0


def measured(state: NodeState, rng: np.random.Generator) -> NodeState:
    """Returns a state as the Profiler measures it."""
    return NodeState(
        min(1.0, state.cpu * _noise(NOISE_CPU, rng)),
        min(1.0, state.gpu * _noise(NOISE_GPU, rng)),
        min(1.0, state.mem * _noise(NOISE_MEM, rng)),
    )


def _noise(deviation: float, rng: np.random.Generator) -> float:
    return float(np.exp(rng.normal(0.0, deviation)))


@dataclass(frozen=True, slots=True)
class EdgePhysics:
    """Deep-Edge's physics on the true states of the machines, which differ from the measured ones.

    Data transfer and initialisation take no time, as the paper assumes (§III.C). Speeds do not vary within an
    epoch: its length is a sum of a hundred steps.

    Attributes:
        truth: true states of all machines without the fleet's trainings.
    """

    truth: Mapping[NodeName, NodeState]

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Returns violations of constraints (1) to (3), memory overflows, and machines assigned twice.

        Violations of constraint (4), the deadlines, are counted in the stage instead: the baseline breaks it.
        """
        faults, given = [], set[NodeName]()
        for assignment in assignments:
            samples = sum(view.state(assignment.job).left.chunks.values())
            trained = sum(part.chunks for part in assignment.parts)
            if trained != samples:
                faults.append(f"{assignment.job} trains {trained} of {samples} samples")
            name = assignment.parameter_server
            if name is None or view.places.nodes[name].kind != PI:
                faults.append(f"{assignment.job} has no parameter server")
            for part in assignment.parts:
                faults += self._part_faults(view, part)
                if part.node in given:
                    faults.append(f"{part.node} trains twice")
                given.add(part.node)
        return faults

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns one epoch, as long as that of the slowest worker."""
        nodes, name = view.places.nodes, assignment.parameter_server
        if name is None:
            raise ValueError(f"{assignment.job} has no parameter server")
        sharing = [assignment, *(other for other in others if other.parameter_server == name)]
        trainings = [self._training(nodes[part.node], part) for one in sharing for part in one.parts]
        updating_s = laws.update_s(trainings, self.truth[name])
        own = list(zip(assignment.parts, trainings, updating_s, strict=False))
        takes_s = max(_shard_s(part.chunks, training, update_s) for part, training, update_s in own)
        late = sum(
            laws.exec_s(training.kind, app.name, laws.state_after(training)) > app.deadline_s
            for part, training, _ in own
            for app in nodes[part.node].apps
        )
        epochs = state.left.epochs - 1
        left = replace(state.left, epochs=epochs) if epochs else None
        return Stage(seconds_to_us(takes_s), left, late_apps=late)

    def _training(self, node: Node, part: NodePart) -> EdgeTraining:
        return EdgeTraining(node.kind, self.truth[node.name], part.batch, part.share_milli)

    def _part_faults(self, view: FleetView, part: NodePart) -> list[str]:
        node = view.places.nodes[part.node]
        if node.kind not in WORKERS:
            return [f"{part.node} does not train"]
        faults = []
        if not BATCH_MIN <= part.batch <= BATCH_MAX:
            faults.append(f"{part.node} has batches of {part.batch}, outside {BATCH_MIN} to {BATCH_MAX}")
        elif laws.state_after(self._training(node, part)).mem > 1:
            faults.append(f"{part.node} has no memory for batches of {part.batch}")
        if part.chunks < 1:
            faults.append(f"{part.node} has nothing to train")
        if not 0 < part.share_milli <= FULL_GPU_MILLI:
            faults.append(f"{part.node} has a share of {part.share_milli} thousandths")
        return faults


def _shard_s(samples: int, training: EdgeTraining, update_s: float) -> float:
    """Returns epochTime_i of a shard, in whole steps; a smaller last batch takes a full update."""
    whole, rest = divmod(samples, training.batch)
    takes_s = whole * (training.batch * laws.compute_s(training) + update_s)
    if rest:
        takes_s += rest * laws.compute_s(replace(training, batch=rest)) + update_s
    return takes_s
