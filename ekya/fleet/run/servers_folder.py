"""Where a run of several servers keeps its files: a run folder for each, and what was between them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekya.files import user_errors
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.desk import Made
from ekya.runfolder import RunFolder, make_folder


@dataclass(frozen=True, slots=True)
class ServersFolder:
    """Its paths. Holds no open files."""

    path: Path

    @staticmethod
    def create(root: Path, name: str) -> "ServersFolder":
        """Makes it.

        Raises:
            UserError: as of ``make_folder``.
        """
        return ServersFolder(make_folder(root, name))

    @property
    def servers(self) -> Path:
        """The servers file as resolved."""
        return self.path / "servers.yaml"

    @property
    def loans(self) -> Path:
        """Every loan when it was made and when it was over, one JSON object a line."""
        return self.path / "loans.jsonl"

    @property
    def summary(self) -> Path:
        """What came of it."""
        return self.path / "summary.json"

    def new_run(self, site: SiteName) -> RunFolder:
        """The folder of a server's own run, which begins."""
        return RunFolder.create(self.path, site)


class LoanFile:
    """Writes loans down, on disk before anybody acts on them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with user_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def __call__(self, made: Made) -> None:
        """A loan that was just made, or is just over.

        Raises:
            UserError: the disk takes no more.
        """
        line = json.dumps(_over(made) if made.outcome else _made(made), separators=(",", ":"))
        with user_errors(self._path):
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Nothing can be written after it."""
        self._file.close()


def _made(made: Made) -> dict[str, Any]:
    loan, offer = made.loan, made.loan.offer
    return {
        "loan": made.number,
        "agreed_us": offer.now_us,
        "site": offer.site,
        "stream": offer.stream,
        "config": offer.config.name,
        "epochs": offer.epochs,
        "parts": [
            {"host": part.host, "share_milli": part.share_milli, "crops": part.crops} for part in loan.parts
        ],
        "begins_us": loan.begins_us,
        "arrives_us": loan.arrives_us,
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
    }
