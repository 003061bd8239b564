"""Deep-Edge's random experiments (§V.C), and the data points of its estimators (§V.B, Table I).

Every worker runs SIFT with a deadline of 200 ms, and random stressors under which SIFT keeps the deadline.
Seeds and ranges were fixed before any policy was run on them.
"""

from dataclasses import dataclass, replace

import numpy as np

from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import BATCH_MAX, BATCH_MIN, NANO, PI, SERVER, SIFT, TX2, WORKERS
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.deep_edge.profile import ParameterServerPoint, ProfilePoint
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.places import BackgroundApp, Node, NodeState, Places
from ekya.fleet.policy.waiting import Linear

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
        nodes[name] = Node(name, SITE, kind, capacity=_TRAINS, state=_measured(truth[name], rng), apps=apps)
    name = NodeName("server")
    truth[name] = _loaded_pi(rng)
    nodes[name] = Node(name, SITE, PI, capacity=_SERVES, state=_measured(truth[name], rng))
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
        state, pi = _stressed(kind, rng), _loaded_pi(rng)
        batch, share = int(rng.integers(BATCH_MIN, BATCH_MAX + 1)), int(rng.choice(shares_milli))
        training = EdgeTraining(kind, state, batch, share)
        after = laws.state_after(training)
        if after.mem > 1:
            continue
        others = [_companion(rng) for _ in range(rng.integers(0, 4))]
        points.append(
            ProfilePoint(
                kind,
                _measured(state, rng),
                batch,
                (batch, *(other.batch for other in others)),
                _measured(pi, rng),
                share,
                laws.compute_s(training) * _noise(NOISE_COMPUTE, rng),
                laws.update_s([training, *others], pi)[0] * _noise(NOISE_UPDATE, rng),
                _measured(after, rng),
                SIFT,
                laws.exec_s(kind, SIFT, after) * _noise(NOISE_EXEC, rng),
            )
        )
    return points


def pi_points(count: int = POINTS[PI]) -> list[ParameterServerPoint]:
    """Draws data points of the parameter server, likewise."""
    rng = np.random.default_rng([PROFILE_SEED, 2])
    points = []
    for _ in range(count):
        state = _loaded_pi(rng)
        others = [_companion(rng) for _ in range(rng.integers(1, 5))]
        after = laws.after_updates(others, state)
        batches = tuple(other.batch for other in others)
        points.append(ParameterServerPoint(PI, _measured(state, rng), batches, _measured(after, rng)))
    return points


def _companion(rng: np.random.Generator) -> EdgeTraining:
    """Draws another worker of the training."""
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


def _loaded_pi(rng: np.random.Generator) -> NodeState:
    rest = SERVER.rest
    return replace(rest, cpu=rest.cpu + _stress(STRESS_SERVER, rng))


def _stress(most: float, rng: np.random.Generator) -> float:
    level = most * float(rng.random())
    return level if rng.random() < STRESS_CHANCE else 0.0


def _measured(state: NodeState, rng: np.random.Generator) -> NodeState:
    return NodeState(
        min(1.0, state.cpu * _noise(NOISE_CPU, rng)),
        min(1.0, state.gpu * _noise(NOISE_GPU, rng)),
        min(1.0, state.mem * _noise(NOISE_MEM, rng)),
    )


def _noise(deviation: float, rng: np.random.Generator) -> float:
    return float(np.exp(rng.normal(0.0, deviation)))
