"""Servers as the coordinator sees them, its answers to them, and what it has agreed with them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import Lent


class Peer(Protocol):
    """A server as the coordinator sees it."""

    def spare_room(self, now_us: int, until_us: int) -> Room | None:
        """Returns what it could lend between the two times, with what it lends already; None: nothing."""

    def lend_share(self, number: int, lent: Lent) -> None:
        """Records that the server lends a share under this loan number."""

    def take_back_share(self, number: int, at_us: int) -> None:
        """Returns a lent share to the server before the loan's end."""

    def grant_loan(self, loan: Loan) -> None:
        """Gives it a loan for an offer that it has left open; it plans again and starts or gives it up."""

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of one of its remote retrainings."""

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of that retraining under the new loan."""

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Ends that retraining; what has arrived of it counts."""

    def borrowed_loans(self) -> Sequence[Loan]:
        """Returns the loans under which its retrainings run, or are about to."""

    def lent_numbers(self) -> Collection[int]:
        """Returns the numbers of the loans for which it keeps a share."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a server's offers.

    Attributes:
        loan: for one of the offers; None where no loan pays.
        why_not: reasons of the refused offers, by stream; empty where no server could be asked.
    """

    loan: Loan | None = None
    why_not: Mapping[StreamId, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Made:
    """A loan and its outcome.

    Attributes:
        number: of the loan.
        loan: as it was agreed.
        among: number of offers, its own included, that were open when it was decided on.
        outcome: empty while the loan lasts; then how it ended.
        over_us: when it ended.
        moved_mb: traffic over each link.
        costs: loss of the hosts' streams, in accuracy times seconds, as foreseen when it was made.
        came: gain of its stream in the same unit; None before it is known.
        serves_after_us: as in ``Gains``.
    """

    number: int
    loan: Loan
    among: int = 1
    outcome: str = ""
    over_us: int = 0
    moved_mb: Mapping[Way, float] = field(default_factory=dict)
    costs: float = 0.0
    came: float | None = None
    serves_after_us: int | None = None
