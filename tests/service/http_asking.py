"""Plain HTTP requests to a server in the test's own process."""

import json
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

from fake_service import TOKEN
from waiting import HANG_GUARD_S

from ekya.config.fleet_sections import HttpConfig
from ekya.service.http.server import HttpServer

FREE_PORT = HttpConfig(port=0)
GUARD = {"X-Ekya-Request": "1"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict
    content: bytes

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def error(self):
        assert self.status >= 400
        assert list(self.json) == ["error"]
        return self.json["error"]

    @property
    def cookie(self):
        return {"Cookie": self.headers["Set-Cookie"].partition(";")[0]}


@dataclass(frozen=True)
class Asking:
    """Asks a server, with the token unless other headers are given."""

    url: str

    def __call__(self, method, path, body=None, headers=None):
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=HANG_GUARD_S)
        headers = dict(BEARER if headers is None else headers)
        if body is not None and not isinstance(body, bytes | str):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self("GET", path, headers=headers)

    def log_in(self, token=TOKEN):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self("POST", "/login", f"token={token}", form)


@contextmanager
def serving(service, folder, token=TOKEN, **options):
    """Runs the server on a free port, and yields what asks it."""
    server = HttpServer(service, folder, token, FREE_PORT.model_copy(update=options))
    server.start()
    try:
        yield Asking(server.url)
    finally:
        server.close()
