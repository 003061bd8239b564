"""Errors in actors: what a constructor finds wrong is kept until somebody asks, and any is told in a line."""

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


def in_words(error: RayError) -> str:
    """What went wrong in one line, of an error that comes with a page of its own."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # Of a constructor that failed there is only the text of a traceback, whose last line is the error.
    return lines[-1] if getattr(error, "actor_init_failed", False) else lines[0]
