"""How many exemplars streams have, as far as their server's loop knows (ours)."""

from ekya.core.ids import StreamId
from ekya.core.state import FleetState, RetrainJob, StreamState


class Remembered:
    """Counts them: a stream remembers crops of the windows in which it was retrained.

    The loop is not told which crops were chosen. Of a class that is rare there are fewer than its part of
    the budget, so there may be some less than this says.

    Args:
        most: that a stream remembers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._crops: dict[StreamId, int] = {}
        self._newest: dict[StreamId, int] = {}

    def follow(self, before: FleetState, after: FleetState) -> None:
        """The loop has taken a turn."""
        for stream in before.streams:
            job = stream.job
            if job is not None and _is_over(job, after.stream(stream.stream)):
                self._add(stream, job.window)

    def exemplars(self, stream: StreamId) -> int:
        """Of a stream, at most."""
        return min(self._most, self._crops.get(stream, 0))

    def _add(self, stream: StreamState, window: int) -> None:
        """Labels of a window are remembered once, however many retrainings there are on them."""
        if self._newest.get(stream.stream) != window:
            self._newest[stream.stream] = window
            self._crops[stream.stream] = self._crops.get(stream.stream, 0) + stream.training_crops


def _is_over(job: RetrainJob, now: StreamState) -> bool:
    """Whether a job has ended, with an epoch at least: its best weights choose what is remembered."""
    if now.job is not None and now.job.job == job.job:
        return False
    ended = now.finished if now.finished is not None and now.finished.job == job.job else job
    return bool(ended.accuracies)
