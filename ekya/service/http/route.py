"""Declaration of a route of the API, from which the server and its OpenAPI description are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from ekya.service.http.backend import Backend

JSON = "application/json"


class Access(Enum):
    """Who may use a route."""

    OPEN = "everyone"
    READ = "token or session"
    METRICS = "token or session, or everyone with `metrics_open`"
    CHANGE = "token, or session and guard header"
    LEND = "token, by a service of the same version"


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose access and body were checked.

    Attributes:
        named: what the path names, by the name of the parameter.
        values: body or query: the keys that were given.
        upload: file with the content that was sent; what takes it renames it.
    """

    named: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    upload: Path = Path()

    @property
    def camera(self) -> str:
        """The camera that the path names; empty without one."""
        return self.named.get("camera", "")


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the API.

    Attributes:
        method, path: path with ``{camera}`` where a camera is named.
        name: of the operation.
        about: what it does, in a sentence.
        call: what it asks of the backend; None for a route that the server answers itself.
        answers: type of the JSON in the answer; None for another media type, or no content. A change that
            may have a note answers without content where it has none.
        media: media type of the answer; empty for no content.
        body: model of the JSON in the request.
        may_be_empty: the request may come without a body.
        query: model of the query.
        access: who may use it.
        uploads: media type of a large body, which is written to a file and checked by its SHA-256.
    """

    method: str
    path: str
    name: str
    about: str
    call: Callable[[Backend, Call], object] | None
    answers: Any = None
    media: str = JSON
    body: type[BaseModel] | None = None
    may_be_empty: bool = False
    query: type[BaseModel] | None = None
    access: Access = Access.READ
    uploads: str = ""
