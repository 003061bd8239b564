"""Client of a service's API, for ``ekya ctl``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from ssl import VERIFY_X509_PARTIAL_CHAIN, create_default_context
from typing import Any
from urllib.parse import quote

from ekya.core.errors import UserError
from ekya.service.http.access import GUARD_HEADER, TOKEN_FILE, read_token
from ekya.service.http.place import Place, find_service

API = "/api/v1"

LONGEST_S = 600.0
"""Time within which a change is carried out, seconds: a new camera is opened, and its models are loaded."""


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Calls the API of one service.

    Attributes:
        name: of the service, for messages.
        place: where it answers.
        token: None for a service that asks for none.
    """

    name: str
    place: Place
    token: str | None = field(repr=False)

    @staticmethod
    def find_service(runs: Path | None, name: str | None) -> "ServiceClient":
        """Returns a client of a service that runs on this machine; see ``find_service``.

        Raises:
            UserError: there is none, or several; or its token cannot be read.
        """
        folder, place = find_service(runs, name)
        token = read_token(folder) if (folder / TOKEN_FILE).exists() else None
        return ServiceClient(folder.name, place, token)

    def get_json(self, path: str) -> Any:
        """Returns the JSON of an answer."""
        return self._call("GET", path, None)

    def send_change(self, method: str, path: str, values: Mapping[str, object] | None = None) -> Any:
        """Changes something; returns the JSON of the answer, if there is any, when it is done."""
        return self._call(method, path, values)

    def _call(self, method: str, path: str, values: Mapping[str, object] | None) -> Any:
        """Calls a route below ``/api/v1/``.

        Raises:
            UserError: the service does not answer, or refuses; with its sentence.
        """
        headers = {GUARD_HEADER: "1"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if values is not None:
            headers["Content-Type"] = "application/json"
        body = None if values is None else json.dumps(values)
        connection: HTTPConnection | None = None
        try:
            connection = self._connection()
            connection.request(method, f"{API}/{path}", body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            raise UserError(
                f"{self.name}: the service does not answer at {self.place.url} ({error}); "
                "see its log, or start it again"
            ) from error
        finally:
            if connection is not None:
                connection.close()
        told = _json(content)
        if answer.status >= 400:
            sentence = told.get("error") if isinstance(told, dict) else None
            raise UserError(f"{self.name}: {sentence or f'the service answers {answer.status}'}")
        return told

    def _connection(self) -> HTTPConnection:
        host, port, certificate = self.place.host, self.place.port, self.place.certificate
        if certificate is None:
            return HTTPConnection(host, port, timeout=LONGEST_S)
        # The certificate is of another name than this machine's own, but it must be that very one.
        tls = create_default_context(cafile=certificate)
        tls.check_hostname = False
        tls.verify_flags |= VERIFY_X509_PARTIAL_CHAIN
        return HTTPSConnection(host, port, timeout=LONGEST_S, context=tls)


def camera_path(camera: str, what: str = "") -> str:
    """Returns the path of a camera, or of something of it, below ``/api/v1/``."""
    return f"cameras/{quote(camera, safe='')}{what}"


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return None
