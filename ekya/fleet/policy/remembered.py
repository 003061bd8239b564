"""Upper bound of the number of exemplars of each stream, from the states of the control loop (ours)."""

from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.units import StreamId


class Remembered:
    """Counts exemplars: a stream remembers crops of the windows in which it was retrained.

    The loop does not receive the chosen crops. A rare class may have fewer crops than its part of the budget,
    so the true number can be lower.

    Args:
        most: exemplars that a stream remembers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._crops: dict[StreamId, int] = {}
        self._newest: dict[StreamId, int] = {}

    def follow_state(self, before: FleetState, after: FleetState) -> None:
        """Records a step of the control loop."""
        for stream in before.streams:
            job = stream.job
            if job is not None and _is_over(job, after.stream(stream.stream)):
                self._add(stream, job.window)

    def most_exemplars(self, stream: StreamId) -> int:
        """Returns the upper bound for a stream."""
        return min(self._most, self._crops.get(stream, 0))

    def _add(self, stream: StreamState, window: int) -> None:
        """Counts the labelled crops of a window once, also where several retrainings use them."""
        if self._newest.get(stream.stream) != window:
            self._newest[stream.stream] = window
            self._crops[stream.stream] = self._crops.get(stream.stream, 0) + stream.labels.training_crops


def _is_over(job: RetrainJob, now: StreamState) -> bool:
    """Returns whether a job has ended after at least one epoch: its best weights choose the exemplars."""
    if now.job is not None and now.job.job == job.job:
        return False
    ended = now.finished if now.finished is not None and now.finished.job == job.job else job
    return bool(ended.accuracies)
