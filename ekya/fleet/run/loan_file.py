"""`loans.jsonl`: a record when a loan is made, when it is over, and when it is known what it has brought."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ekya.fleet.policy.loans import Way
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.promises import Promises
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, Made
from ekya.system.json_lines import JsonLines, read_json_lines

_FORESEEN = ("agreed_us", "arrives_us", "late_us", "promises")

UNDER_WAY = "under way"
"""Outcome of a loan without a record of its end."""


@dataclass(frozen=True, slots=True)
class LoanRecord:
    """A loan as recorded in the file.

    Attributes:
        site: of the borrower.
        host: site that lent.
        outcome: how it ended.
        moved_mb: traffic over each link.
        agreed_us: when it was made.
        arrives_us: when its weights were foreseen to be back.
        over_us: when it ended; 0 before.
        late_us: allowance in ``arrives_us`` for the delay of former trainings.
        promises: gain of its stream by the borrower's estimate, in accuracy times seconds.
        came, serves_after_us: as in ``Made``.
    """

    site: SiteName
    host: SiteName
    outcome: str = UNDER_WAY
    moved_mb: Mapping[Way, float] = field(default_factory=dict)
    agreed_us: int = 0
    arrives_us: int = 0
    over_us: int = 0
    late_us: int = 0
    promises: float = 0.0
    came: float | None = None
    serves_after_us: int | None = None


class LoanFile:
    """Appends loans to the file before any server acts on them."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def __call__(self, made: Made) -> None:
        """Records a loan that was just made or has just ended.

        Raises:
            UserError: the disk is full.
        """
        self._lines.append_records(_over(made) if made.outcome else _made(made))

    def record_lost(self, number: int) -> None:
        """Records that no server knew of a loan any more when the coordinator was started again."""
        self._lines.append_records(
            {"loan": number, "over_us": 0, "outcome": "lost with the coordinator", "moved": []}
        )

    def close(self) -> None:
        """Closes the file for good."""
        self._lines.close()


def read_loans(path: Path) -> tuple[LoanRecord, ...]:
    """Reads all loans in the order in which they were made; none where the file does not exist.

    Raises:
        UserError: a line is damaged. A last one that a crash cut off is passed over.
    """
    loans: dict[int, LoanRecord] = {}

    def take(said: dict[str, Any]) -> None:
        if "site" in said:
            foreseen = {key: said[key] for key in _FORESEEN if key in said}
            loans[said["loan"]] = LoanRecord(said["site"], said["host"], **foreseen)
        else:
            loans[said["loan"]] = replace(
                loans[said["loan"]],
                over_us=said["over_us"],
                outcome=said["outcome"],
                moved_mb={(way["from"], way["to"]): way["mb"] for way in said["moved"]},
                came=said.get("came"),
                serves_after_us=said.get("serves_after_us"),
            )

    if path.is_file():
        read_json_lines(path, take)
    return tuple(loans.values())


def learnt(loans: Sequence[LoanRecord]) -> Promises:
    """Returns what a coordinator has learnt of these loans, for the one that takes its place."""
    promises = Promises()
    for loan in sorted(loans, key=lambda loan: loan.over_us):
        late_us = loan.late_us + loan.over_us - loan.arrives_us
        if loan.outcome == ARRIVED:
            promises.late.record_delay(loan.host, late_us)
        elif loan.outcome == GIVEN_UP:
            promises.late.record_least_delay(loan.host, late_us)
        if loan.came is not None:
            promises.record_gain(loan.site, loan.promises, loan.came, loan.serves_after_us)
    return promises


def _made(made: Made) -> dict[str, Any]:
    loan, offer = made.loan, made.loan.offer
    return {
        "loan": made.number,
        "agreed_us": offer.now_us,
        "among": made.among,
        "site": offer.site,
        "stream": offer.stream,
        "config": offer.config.name,
        "epochs": offer.epochs,
        "host": loan.host,
        "share_milli": loan.share_milli,
        "begins_us": loan.begins_us,
        "arrives_us": loan.arrives_us,
        "late_us": loan.late_us,
        "promises": round(loan.promises, 6),
        "brings": round(loan.brings, 6),
        "costs": round(made.costs, 6),
        "reason": loan.reason,
    }


def _over(made: Made) -> dict[str, Any]:
    return {
        "loan": made.number,
        "over_us": made.over_us,
        "outcome": made.outcome,
        "moved": [
            {"from": origin, "to": target, "mb": round(mb, 6)}
            for (origin, target), mb in sorted(made.moved_mb.items())
        ],
        "came": made.came,
        "serves_after_us": made.serves_after_us,
    }
