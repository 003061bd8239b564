"""What an actor's constructor finds wrong with its input: kept until somebody asks, and raised as it was."""

from collections.abc import Callable
from typing import Any, TypeVar

from ray.exceptions import RayError

from ekya.errors import UserError

_Answer = TypeVar("_Answer")


def complaining(kind: type[Any]) -> type[Any]:
    """An actor's class whose ``ready`` raises the UserError that its constructor ran into.

    Of an error in a constructor Ray hands on the text of a traceback alone; of one in a method, the error.
    """

    def make(actor: Any, *arguments: object) -> None:
        actor.complaint = None
        try:
            kind.__init__(actor, *arguments)
        except UserError as error:
            actor.complaint = error

    def ready(actor: Any) -> Any:
        if actor.complaint is not None:
            raise actor.complaint
        return kind.ready(actor)

    # Ray's dashboard and the list of processes show the class's name.
    return type(kind.__name__, (kind,), {"__init__": make, "ready": ready})


def or_complaint(ask: Callable[[], _Answer]) -> _Answer:
    """What actors answer.

    Raises:
        UserError: as one of them raised it.
    """
    try:
        return ask()
    except RayError as error:
        # Ray's own error is made to look like what caused it, with a traceback for its text.
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        raise
