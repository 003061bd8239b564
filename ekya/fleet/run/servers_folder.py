"""Folder of a run of several servers: a run folder for each, and the loans between them."""

from dataclasses import dataclass
from pathlib import Path

from ekya.fleet.policy.names import SiteName
from ekya.results.storage.run_folder import RunFolder, make_folder


@dataclass(frozen=True, slots=True)
class ServersFolder:
    """Paths in the folder. Holds no open files."""

    path: Path

    @staticmethod
    def create(root: Path, name: str) -> "ServersFolder":
        """Makes the folder.

        Raises:
            UserError: as in ``make_folder``.
        """
        return ServersFolder(make_folder(root, name))

    @property
    def servers(self) -> Path:
        """The servers file as resolved."""
        return self.path / "servers.yaml"

    @property
    def loans(self) -> Path:
        """Loans when they are made and when they are over, one JSON object a line."""
        return self.path / "loans.jsonl"

    @property
    def stores(self) -> Path:
        """Where the files of its stores are; missing without stores."""
        return self.path / "stores.json"

    @property
    def updates(self) -> Path:
        """Updates of stores when they are wanted, when they begin and when they end; as the loans."""
        return self.path / "updates.jsonl"

    @property
    def live(self) -> Path:
        """What a driver that is started again must know of a live run."""
        return self.path / "live.json"

    @property
    def summary(self) -> Path:
        """Results of the run."""
        return self.path / "summary.json"

    def new_run(self, site: SiteName) -> RunFolder:
        """Makes the run folder of one server."""
        return RunFolder.create_numbered(self.path, site)
