"""Deep-Edge's five estimators by gradient boosting, one set of regressors per kind of machine (§V.B)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Literal, TypeVar

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from ekya.core.errors import UserError
from ekya.fleet.policy.deep_edge.estimates import (
    ANY_EDGE,
    EdgeEstimates,
    EdgeLimits,
    EdgeTraining,
    ProfilePoint,
)
from ekya.fleet.policy.places import NodeState

Row = tuple[float, ...]

TREES, DEPTH, RATE, PART, LEAF = 200, 3, 0.05, 0.7, 5
"""Hyperparameters of every regressor, from cross-validation on the training points of the Nano's
EstUpdateTime, which is the hardest to fit.
"""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that one regressor estimates.

    Attributes:
        name: as in Table I.
        features: of a data point, in a fixed order.
        label: of a data point.
    """

    name: str
    features: Callable[[ProfilePoint], Row]
    label: Callable[[ProfilePoint], float]


def _compute(worker: EdgeTraining) -> Row:
    return (worker.state.cpu, worker.state.gpu, worker.batch, worker.share_milli)


def _update(worker: EdgeTraining, batches: Sequence[int], ps: NodeState) -> Row:
    """Returns the features of EstUpdateTime; of the distribution B size, minimum, maximum and Σ 1/b."""
    pushes = sum(1 / other for other in batches)
    of_batches = (len(batches), pushes, min(batches), max(batches))
    return (worker.state.cpu, worker.state.gpu, worker.batch, ps.cpu, *of_batches)


def _state(worker: EdgeTraining) -> Row:
    return (worker.state.cpu, worker.state.gpu, worker.state.mem, worker.batch, worker.share_milli)


def _state_quantity(metric: Literal["gpu", "cpu", "mem"]) -> Quantity:
    of: Callable[[NodeState], float] = attrgetter(metric)
    return Quantity(f"EstState {metric}", lambda point: _state(point.training), lambda point: of(point.after))


def _exec(after: NodeState) -> Row:
    return (after.cpu, after.gpu, after.mem)


COMPUTE = Quantity(
    "EstComputeTime",
    lambda point: _compute(point.training),
    lambda point: point.compute_s,
)
UPDATE = Quantity(
    "EstUpdateTime",
    lambda point: _update(point.training, point.batches, point.parameter_server),
    lambda point: point.update_s,
)
STATE_GPU, STATE_CPU, STATE_MEM = (_state_quantity(metric) for metric in ("gpu", "cpu", "mem"))
EXEC = Quantity(
    "EstExecTime",
    lambda point: _exec(point.after),
    lambda point: point.exec_s,
)

QUANTITIES = (COMPUTE, UPDATE, STATE_GPU, STATE_CPU, STATE_MEM, EXEC)


class BoostedEstimates:
    """Estimates of machines that were profiled.

    Args:
        points: measurements; one regressor is fitted per kind of machine and quantity, for EstExecTime also
            per application.
    """

    def __init__(self, points: Sequence[ProfilePoint], trees: int = TREES) -> None:
        self._regressors: dict[tuple[str, str, str], GradientBoostingRegressor] = {}
        for kind in sorted({point.kind for point in points}):
            of_kind = [point for point in points if point.kind == kind]
            for quantity in QUANTITIES:
                apps = sorted({point.app for point in of_kind}) if quantity is EXEC else [""]
                for app in apps:
                    told = [point for point in of_kind if app in {"", point.app}]
                    rows = [quantity.features(point) for point in told]
                    labels = [quantity.label(point) for point in told]
                    self._regressors[kind, quantity.name, app] = boosted(rows, labels, trees)
        self._asked = lru_cache(maxsize=100_000)(self._predicted)

    def compute_s(self, worker: EdgeTraining) -> float:
        return self._asked(worker.kind, COMPUTE.name, _compute(worker))

    def update_s(self, workers: Sequence[EdgeTraining], parameter_server: NodeState) -> list[float]:
        batches = tuple(worker.batch for worker in workers)
        return [
            self._asked(worker.kind, UPDATE.name, _update(worker, batches, parameter_server))
            for worker in workers
        ]

    def state_after(self, worker: EdgeTraining) -> NodeState:
        """Returns EstState, one regressor per metric."""
        kind, row = worker.kind, _state(worker)
        return NodeState(
            cpu=self._asked(kind, STATE_CPU.name, row),
            gpu=self._asked(kind, STATE_GPU.name, row),
            mem=self._asked(kind, STATE_MEM.name, row),
        )

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        return self._asked(kind, EXEC.name, _exec(state), app)

    def _predicted(self, kind: str, quantity: str, row: Row, app: str = "") -> float:
        regressor = self._regressors.get((kind, quantity, app))
        if regressor is None:
            beside = f" beside {app}" if app else ""
            raise UserError(f"{quantity} of a {kind}{beside} has never been measured; profile one")
        return estimated(regressor, row)


def boosted(rows: Sequence[Row], labels: Sequence[float], trees: int = TREES) -> GradientBoostingRegressor:
    """Fits a regressor to the labels' logarithm, so that errors are relative, as in MAPE."""
    model = GradientBoostingRegressor(
        n_estimators=trees,
        max_depth=DEPTH,
        learning_rate=RATE,
        subsample=PART,
        min_samples_leaf=LEAF,
        random_state=0,
    )
    return model.fit(np.array(rows), np.log(labels))


def estimated(regressor: GradientBoostingRegressor, row: Row) -> float:
    """Returns the label that a regressor predicts for a row of features."""
    return float(np.exp(regressor.predict(np.array([row]))[0]))


P = TypeVar("P")

TEST_PART = 0.16
"""Part of the points that is held out: the paper's 264 of 1650, 72 of 450 and 120 of 750."""

SURE = 99.0
"""Percentile of the errors that limits allow for."""


@dataclass(frozen=True, slots=True)
class Models:
    """Models fitted to a part of the points of some kinds of machines.

    Attributes:
        estimates: of times and states.
        limits: include the errors of the estimates.
        train: points that they have learned from.
        tests: held-out points by kind of machine.
    """

    estimates: EdgeEstimates
    limits: EdgeLimits
    train: tuple[ProfilePoint, ...]
    tests: Mapping[str, tuple[ProfilePoint, ...]]


def split(points: Sequence[P], seed: int = 0) -> tuple[list[P], list[P]]:
    """Splits points at random into training and test points."""
    order = np.random.default_rng(seed).permutation(len(points))
    test = round(TEST_PART * len(points))
    return [points[at] for at in order[test:]], [points[at] for at in order[:test]]


def reckoned(
    estimates: EdgeEstimates,
    test: Sequence[ProfilePoint],
    deadline_s: float,
    limits: EdgeLimits = ANY_EDGE,
) -> EdgeLimits:
    """Returns limits with the errors by which estimates of memory and of execution times are too low.

    For applications only points near the decision count, where the estimate is between half the deadline and
    the deadline.

    Args:
        deadline_s: of the applications.
    """
    mem, execs = [], []
    for point in test:
        after = estimates.state_after(point.training)
        mem.append(point.after.mem / after.mem - 1)
        expected_s = estimates.exec_s(point.kind, point.app, after)
        if deadline_s / 2 <= expected_s <= deadline_s:
            execs.append(point.exec_s / expected_s - 1)
    return replace(
        limits,
        mem_error=max(0.0, float(np.percentile(mem, SURE))),
        exec_error=max(0.0, float(np.percentile(execs, SURE))) if execs else 0.0,
    )
