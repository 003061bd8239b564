"""Data points of Deep-Edge's parameter server, and the errors of estimates of its state (Table I)."""

from collections.abc import Sequence

import numpy as np

from ekya.fleet.fitting.boosted import boosted, estimated
from ekya.fleet.fitting.judged import Judged, row
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.devices import PARAMETER_SERVERS, PI, ParameterServer
from ekya.fleet.papers.deep_edge.workload import POINTS, PROFILE_SEED, companion, loaded_pi, measured
from ekya.fleet.policy.deep_edge.profile import ParameterServerPoint
from ekya.fleet.policy.places import NodeState


def pi_points(count: int = POINTS[PI], seed: int = PROFILE_SEED) -> list[ParameterServerPoint]:
    """Draws data points of the parameter server, as the Profiler would measure them."""
    rng = np.random.default_rng([seed, 2])
    points = []
    for _ in range(count):
        state = loaded_pi(rng)
        others = [companion(rng) for _ in range(rng.integers(1, 5))]
        after = after_updates(PARAMETER_SERVERS[PI], state, [step for _, step in others])
        batches = tuple(size for size, _ in others)
        points.append(ParameterServerPoint(PI, measured(state, rng), batches, measured(after, rng)))
    return points


def after_updates(kind: ParameterServer, state: NodeState, steps: Sequence[tuple[float, float]]) -> NodeState:
    """Returns the state of the parameter server while workers push to it."""
    updates_s = laws.update_s(kind, state.cpu, steps)
    busy = sum(
        kind.service_s / (computing_s + updating_s)
        for (computing_s, _), updating_s in zip(steps, updates_s, strict=True)
    )
    cpu = laws.saturated(state.cpu + kind.cpu_demand * min(1.0, busy))
    return NodeState(cpu, 0.0, state.mem + kind.model_mem + kind.worker_mem * len(steps))


def judged_parameter_server(
    train: Sequence[ParameterServerPoint], test: Sequence[ParameterServerPoint], seed: int = 0
) -> list[Judged]:
    """Returns the parameter server's rows: its CPU and memory while workers push to it."""
    rows = []
    for metric in ("cpu", "mem"):
        labels, true = ([getattr(point.after, metric) for point in points] for points in (train, test))
        regressor = boosted([_row(point) for point in train], labels, seed=seed)
        values = [estimated(regressor, _row(point)) for point in test]
        rows.append(row(test[0].kind, f"EstState {metric}", len(train), values, true))
    return rows


def _row(point: ParameterServerPoint) -> tuple[float, ...]:
    pushes = sum(1 / batch for batch in point.batches)
    return (point.before.cpu, point.before.mem, len(point.batches), pushes)
