"""Interface of a sink of answers."""

from collections.abc import Sequence
from typing import Protocol

from ekya.service.answers.messages import Message


class NotDeliveredError(Exception):
    """Messages were not confirmed, and are sent again later; the text says why."""


class CameraReport(Protocol):
    """State of a camera, as a sink shows it."""

    @property
    def id(self) -> str:
        """Name of the stream."""

    @property
    def state(self) -> str:
        """In one word, such as ``serving`` or ``lost``."""

    @property
    def accuracy(self) -> float | None:
        """Estimated accuracy of what answers, in [0, 1]; None if it is not known."""

    @property
    def healthy(self) -> bool:
        """Whether the camera gets what it needs."""


class Sink(Protocol):
    """Takes messages. Each sink is used by one thread only, and may block it.

    Attributes:
        batch: largest number of messages that it takes at once.
    """

    batch: int

    def send(self, messages: Sequence[Message]) -> None:
        """Returns when the messages are confirmed.

        Raises:
            NotDeliveredError: some may not have arrived; all are sent again.
        """

    def report(self, cameras: Sequence[CameraReport]) -> None:
        """Shows the states of all cameras; called every few seconds.

        Raises:
            NotDeliveredError: as for ``send``.
        """

    def close(self) -> None:
        """Releases everything; the sink may be used again."""
