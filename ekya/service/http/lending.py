"""Routes by which services lend to each other: a share, a training under it, and its checkpoints."""

from collections.abc import Callable

from pydantic import BaseModel, Field

from ekya.core.errors import NotThereError
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.live.lender import LENDING
from ekya.fleet.run.live.lending_desk import LendingDesk
from ekya.fleet.run.training.protocol import LentProgress
from ekya.service.http.backend import Backend
from ekya.service.http.bodies import Body
from ekya.service.http.route import Access, Call, Route

OCTETS = "application/octet-stream"


class RoomQuery(Body):
    """Who would borrow, and for how long at most.

    Attributes:
        borrower: id of the service that asks, 16 hexadecimal digits that it draws when it starts.
        left_us: time until the end of its window, in microseconds.
    """

    borrower: str = Field(pattern="^[0-9a-f]{16}$")
    left_us: int = Field(ge=0)


class LoanTerms(Body):
    """A share for a time, which is counted from the request.

    Attributes:
        share_milli: of a GPU, in thousandths.
        lasts_us: in microseconds.
    """

    share_milli: int = Field(ge=1)
    lasts_us: int = Field(ge=1)


class TrainingTerms(Body):
    """Terms of a training that may change while it runs.

    Attributes:
        epochs: number of epochs in total.
    """

    epochs: int = Field(ge=1)


def _desk(backend: Backend) -> LendingDesk:
    desk = backend.lending()
    if desk is None:
        raise NotThereError("this service lends nothing; start it with --lend, or write lending.lend: true")
    return desk


def _room(backend: Backend, call: Call) -> Room | None:
    return _desk(backend).spare_room(call.values["borrower"], call.values["left_us"])


def _lend(backend: Backend, call: Call) -> None:
    _desk(backend).lend_share(call.named["loan"], call.values["share_milli"], call.values["lasts_us"])


def _train(backend: Backend, call: Call) -> None:
    _desk(backend).begin_training(call.named["loan"], call.upload)


def _route(
    method: str,
    path: str,
    name: str,
    about: str,
    call: Callable[[Backend, Call], object],
    body: type[BaseModel] | None = None,
) -> Route:
    return Route(
        method,
        f"{LENDING}/{path}",
        name,
        about,
        call,
        None,
        "",
        body,
        access=Access.LEND,
    )


_LOAN = "loans/{loan}"

LENDING_ROUTES = (
    Route(
        "GET",
        f"{LENDING}/room",
        "lending_room",
        "What this service could lend to another one now; null for nothing.",
        _room,
        Room | None,
        query=RoomQuery,
        access=Access.LEND,
    ),
    _route("PUT", _LOAN, "lend", "Lends a share; once, however often it is asked for.", _lend, LoanTerms),
    Route(
        "PUT",
        f"{LENDING}/{_LOAN}/training",
        "train",
        "Begins a loan's training: a safetensors file, whose SHA-256 stands in the header Ekya-Sha256; once.",
        _train,
        media="",
        access=Access.LEND,
        uploads=OCTETS,
    ),
    Route(
        "GET",
        f"{LENDING}/{_LOAN}",
        "lent_training",
        "Progress of a loan's training.",
        lambda b, call: _desk(b).read_progress(call.named["loan"]),
        LentProgress,
        access=Access.LEND,
    ),
    Route(
        "GET",
        f"{LENDING}/{_LOAN}/checkpoints/{{digest}}",
        "lent_checkpoint",
        "The best checkpoint of a loan's training, by its SHA-256.",
        lambda b, call: _desk(b).read_checkpoint(call.named["loan"], call.named["digest"]),
        media=OCTETS,
        access=Access.LEND,
    ),
    _route(
        "PATCH",
        _LOAN,
        "change_lent_training",
        "Changes terms of a loan's training.",
        lambda b, call: _desk(b).set_epochs(call.named["loan"], call.values["epochs"]),
        TrainingTerms,
    ),
    _route(
        "DELETE",
        _LOAN,
        "end_loan",
        "Ends a loan and its training, if it is there.",
        lambda b, call: _desk(b).give_back(call.named["loan"]),
    ),
)
