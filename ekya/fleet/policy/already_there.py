"""Models and crops of former loans that hosts still hold, so that they need not be sent again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ekya.core.units import ModelVersion, StreamId
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import AlreadyThere


@dataclass(frozen=True, slots=True)
class _Made:
    """Weights that a loan trains.

    Attributes:
        at: site of its parameter server.
        before: version that serves without them; a newer one comes from the loan.
        home_in: window in which the weights came home; None while they have not.
    """

    at: SiteName
    before: ModelVersion
    home_in: int | None = None


class KeptModels:
    """Tracks models of one server's streams that other servers hold.

    A host has the model with which a loan began; the site of the parameter server has the trained one. Each
    host keeps one model per stream.
    """

    def __init__(self) -> None:
        self._models: dict[tuple[StreamId, SiteName], ModelVersion] = {}
        self._made: dict[StreamId, _Made] = {}

    def begins(self, loan: Loan, serving: ModelVersion) -> None:
        """Records that all hosts of a loan receive the serving model."""
        stream = loan.offer.stream
        self._models |= {(stream, host): serving for host in loan.hosts}
        self._made[stream] = _Made(loan.server, serving)

    def goes_on(self, loan: Loan) -> None:
        """Records that other hosts continue a retraining, from a snapshot that does not serve."""
        stream = loan.offer.stream
        for host in loan.hosts:
            self._models.pop((stream, host), None)
        self._made[stream] = replace(self._made[stream], at=loan.server)

    def arrived(self, stream: StreamId, window: int) -> None:
        """Records that the weights are home."""
        self._made[stream] = replace(self._made[stream], home_in=window)

    def serves(self, stream: StreamId, version: ModelVersion, window: int) -> None:
        """Records the serving version; a new one in the window of an arrival is the model that arrived."""
        made = self._made.get(stream)
        if made is None or made.home_in is None:
            return
        if made.home_in != window:
            del self._made[stream]
        elif version != made.before:
            # This may be a checkpoint of an earlier epoch; the best one can follow.
            self._made[stream] = replace(made, before=version)
            self._models[stream, made.at] = version

    def already_there(
        self, stream: StreamId, serving: ModelVersion, model_mb: float
    ) -> dict[SiteName, AlreadyThere]:
        """Returns the servers that hold a stream's serving model already."""
        return {
            host: AlreadyThere(model_mb=model_mb)
            for (whose, host), version in self._models.items()
            if whose == stream and version == serving
        }


def left_behind(loan: Loan, gone: SiteName) -> Mapping[SiteName, AlreadyThere]:
    """Returns the crops that the hosts of a loan keep when one of them is gone.

    Models are not among it: the retraining continues from the last snapshot at home.
    """
    offer = loan.offer
    return {part.host: AlreadyThere(part.crops * offer.crops_mb) for part in loan.parts if part.host != gone}
