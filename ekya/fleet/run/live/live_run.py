"""Notes of a run, for another process of `ekya fleet run` that takes it up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.system.files import write_text_atomic


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a driver that is started again must know of a run.

    Attributes:
        run: its id.
        tier: name of the policy that finds loans; None: every server works alone.
        seed: of all random draws.
        links: between the servers.
        addresses: of all sites.
        points: file of ``ekya fleet profile``, whose models Deep-Edge's tiers use; None: no models.
    """

    run: str
    tier: str | None
    seed: int
    links: Links
    addresses: Mapping[SiteName, str]
    points: Path | None = None

    def save(self, path: Path) -> None:
        """Writes it to a file."""
        ways = [[*way, mb_s] for way, mb_s in self.links.mb_s.items()]
        content = {
            "run": self.run,
            "tier": self.tier,
            "seed": self.seed,
            "mb_s": self.links.usual_mb_s,
            "ways": ways,
            "sites": dict(self.addresses),
            "points": None if self.points is None else str(self.points),
        }
        write_text_atomic(path, json.dumps(content, indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "LiveRun":
        """Reads it from a file.

        Raises:
            UserError: there is none, or it is damaged.
        """
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            links = Links({(way[0], way[1]): way[2] for way in said["ways"]}, said["mb_s"])
            points = None if said["points"] is None else Path(said["points"])
            return LiveRun(said["run"], said["tier"], said["seed"], links, said["sites"], points)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{path}: cannot be read ({type(error).__name__}); name the folder of a run of ekya fleet run"
            ) from error
