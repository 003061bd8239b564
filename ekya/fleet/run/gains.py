"""Gains of borrowed retrainings, measured from the states of their server's control loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ekya.core.state import FleetState, StreamState
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.fleet.policy.loans import Loan

Came = Callable[[Loan, float, int | None], None]
"""Callback for a loan's gain, in accuracy times seconds, and the microseconds from the end of its training
until its best weights served; None where they never did, or did before."""


@dataclass(slots=True, eq=False)
class _Borrowed:
    """A retraining whose gain is not known yet, and the model that serves with its newest known accuracy."""

    loan: Loan
    job: JobId
    version: ModelVersion
    accuracy: float
    came: float = 0.0
    ended_us: int | None = None


class Gains:
    """Measures what each borrowed retraining brings by the end of its window, snapshots included."""

    def __init__(self, came: Came) -> None:
        self._came = came
        self._borrowed: dict[StreamId, _Borrowed] = {}

    def follow_state(self, fleet: FleetState, loans: Iterable[Loan], now_us: int) -> None:
        """Takes over the state after a step of the loop, and the loans under which retrainings then run."""
        streams = {stream.stream: stream for stream in fleet.streams}
        for stream in sorted(self._borrowed):
            self._measure(self._borrowed[stream], streams.get(stream), now_us)
        for loan in loans:
            state, known = streams.get(loan.offer.stream), self._borrowed.get(loan.offer.stream)
            if known is not None:
                known.loan = loan  # it may have moved
            elif state is not None and state.job is not None:
                begun = _Borrowed(loan, state.job.job, state.version, state.accuracy or 0.0)
                self._borrowed[state.stream] = begun

    def _measure(self, one: _Borrowed, state: StreamState | None, now_us: int) -> None:
        job = None if state is None else state.job or state.finished
        if state is None or job is None or job.job != one.job:
            self._report(one, None)
            return
        served, accuracy = state.version != one.version, state.accuracy or 0.0
        if state.job is None and one.ended_us is None:
            one.ended_us = now_us
        if served:
            one.came += one.loan.offer.measured_gain(accuracy - one.accuracy, now_us)
        if served or one.ended_us is None:  # afterwards the loop counts on weights that do not serve yet
            one.version, one.accuracy = state.version, accuracy
        if one.ended_us is not None and one.accuracy >= job.best_accuracy:
            self._report(one, now_us - one.ended_us if served else None)
        elif now_us >= one.loan.offer.until_us:
            self._report(one, None)

    def _report(self, one: _Borrowed, serves_after_us: int | None) -> None:
        del self._borrowed[one.loan.offer.stream]
        self._came(one.loan, round(one.came, 6), serves_after_us)
