"""Mixed-integer programmes, for the papers' optima."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Ints = NDArray[np.int64]


class UnsolvedError(Exception):
    """The solver found no solution within its time limit."""


class Programme:
    """A linear cost to be minimised over variables from 0 on, some of them integers."""

    def __init__(self) -> None:
        self._cost = list[float]()
        self._upper = list[float]()
        self._whole = list[bool]()
        self._low = list[float]()
        self._high = list[float]()
        self._entries = list[tuple[float, int, int]]()

    def variables(self, cost: ArrayLike, upper: ArrayLike = np.inf, whole: bool = False) -> Ints:
        """Adds a variable for each cost, with this upper bound; returns their indices in the same shape."""
        costs = np.asarray(cost, dtype=float)
        begin = len(self._cost)
        self._cost += costs.ravel().tolist()
        self._upper += np.broadcast_to(np.asarray(upper, dtype=float), costs.shape).ravel().tolist()
        self._whole += [whole] * costs.size
        return np.arange(begin, len(self._cost)).reshape(costs.shape)

    def require(self, terms: dict[int, float], least: float = -np.inf, most: float = np.inf) -> None:
        """Adds the constraint least ≤ Σ factor · variable ≤ most, with factors by index of a variable."""
        self._entries += [(factor, len(self._low), int(index)) for index, factor in terms.items()]
        self._low.append(least)
        self._high.append(most)

    def solved(self, limit_s: float, gap: float) -> Any:
        """Returns scipy's result: within a relative gap of the optimum, or the best after a time."""
        factors, rows, columns = zip(*self._entries, strict=True)
        shape = len(self._low), len(self._cost)
        return milp(
            self._cost,
            integrality=self._whole,
            bounds=Bounds(0.0, self._upper),
            constraints=LinearConstraint(csr_array((factors, (rows, columns)), shape), self._low, self._high),
            options={"time_limit": limit_s, "mip_rel_gap": gap},
        )
