"""Registration of a machine with a manager, over real HTTP on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from ekya.core.errors import UserError
from ekya.fleet.run.deep_edge.agent import tell_on

NODE = {"node": "nano-1", "kind": "nano & co"}


@pytest.fixture
def manager():
    """A manager that gives the set replies in order and records its requests."""
    answers, asked = [], []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(urlsplit(self.path))
            status, said = answers.pop(0)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_tells_on_until_the_manager_does_not_want_it(manager, caplog) -> None:
    url, answers, asked = manager
    answers += [(200, {}), (503, {}), (200, {}), (400, {"error": "nobody profiled a nano"})]
    with pytest.raises(UserError, match=r"says: nobody profiled a nano$"):
        tell_on(f"{url}/", NODE, every_s=0.02)
    assert [one.path for one in asked] == ["/monitor"] * 4
    said = {name: values[0] for name, values in parse_qs(asked[0].query).items()}
    assert NODE.items() <= said.items()
    assert all(0.0 <= float(said[name]) <= 1.0 for name in ("cpu", "gpu", "mem"))
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_nobody_who_answers_is_an_error_at_first(manager) -> None:
    url, answers, _ = manager
    answers += [(500, {})]
    with pytest.raises(UserError, match=r"no answer .500"):
        tell_on(url, NODE, every_s=0.02)
    with pytest.raises(UserError, match=r"no answer .*begin one with ekya fleet manager"):
        tell_on("http://127.0.0.1:9", NODE, every_s=0.02)


@pytest.mark.parametrize("url", ["127.0.0.1:8471", "ftp://127.0.0.1", "http://", "http://127.0.0.1:x"])
def test_what_is_no_url_is_refused(url) -> None:
    with pytest.raises(UserError, match=r"write it as http://HOST:PORT$"):
        tell_on(url, NODE, every_s=0.02)
