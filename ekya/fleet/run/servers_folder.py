"""Where a run of several servers keeps its files: a run folder for each, and what was between them."""

from dataclasses import dataclass
from pathlib import Path

from ekya.fleet.policy.names import SiteName
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
