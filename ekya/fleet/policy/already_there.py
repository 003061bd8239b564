"""What hosts still have of former loans, so that it need not be sent again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ekya.core.ids import ModelVersion, StreamId
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import AlreadyThere


@dataclass(frozen=True, slots=True)
class _Made:
    """Weights that a loan makes.

    Attributes:
        at: where its parameter server is.
        before: versions that are newer come of it.
        home_in: the window in which they came home; None while they have not.
    """

    at: SiteName
    before: ModelVersion
    home_in: int | None = None


class KeptModels:
    """Models of one server's streams that lie at others.

    A host has the model that a loan began with; where the parameter server was is the one that came of it.
    Each host keeps one a stream.
    """

    def __init__(self) -> None:
        self._models: dict[tuple[StreamId, SiteName], ModelVersion] = {}
        self._made: dict[StreamId, _Made] = {}

    def begins(self, loan: Loan, serving: ModelVersion) -> None:
        """All hosts are sent what serves now."""
        stream = loan.offer.stream
        self._models |= {(stream, host): serving for host in loan.hosts}
        self._made[stream] = _Made(loan.server, serving)

    def goes_on(self, loan: Loan) -> None:
        """The rest is done elsewhere, from a snapshot that nobody serves."""
        stream = loan.offer.stream
        for host in loan.hosts:
            self._models.pop((stream, host), None)
        self._made[stream] = replace(self._made[stream], at=loan.server)

    def arrived(self, stream: StreamId, window: int) -> None:
        """The weights are home."""
        self._made[stream] = replace(self._made[stream], home_in=window)

    def serves(self, stream: StreamId, version: ModelVersion, window: int) -> None:
        """What a stream serves now: what came home, if it is new in the window in which that did."""
        made = self._made.get(stream)
        if made is None or made.home_in is None:
            return
        if made.home_in != window:
            del self._made[stream]
        elif version != made.before:
            # Where this is of an earlier epoch, the best one may follow.
            self._made[stream] = replace(made, before=version)
            self._models[stream, made.at] = version

    def already_there(
        self, stream: StreamId, serving: ModelVersion, model_mb: float
    ) -> dict[SiteName, AlreadyThere]:
        """Where a stream's serving model need not be sent to."""
        return {
            host: AlreadyThere(model_mb=model_mb)
            for (whose, host), version in self._models.items()
            if whose == stream and version == serving
        }


def left_behind(loan: Loan, gone: SiteName) -> Mapping[SiteName, AlreadyThere]:
    """What hosts have when another of them is gone: their crops.

    What they go on from is the last snapshot at home.
    """
    offer = loan.offer
    return {part.host: AlreadyThere(part.crops * offer.crops_mb) for part in loan.parts if part.host != gone}
