"""Stores of a run over REST, as ``ekya fleet run`` opens them."""

import io
import json
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from rich.console import Console
from waiting import HANG_GUARD_S

from ekya.cli.command import Output
from ekya.cli.fleet_stores import RestOptions, open_updates, read_stores_of_file
from ekya.fleet.run.servers_folder import ServersFolder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("ekya.fleet.run.stores.rest.WRONG_TOKEN_S", 0.01)
    for name in ("car", "bus"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    spec = "{samples: pictures, out: a.safetensors, model: mobilenet_v3_small, side: 16}"
    (tmp_path / "stores.yaml").write_text(f"stores: {{cam: {spec}}}")
    (tmp_path / "run").mkdir()
    return ServersFolder(tmp_path / "run")


class Opened:
    """Updates of the stores of a run, reached at a free port."""

    def __init__(self, folder, host, stores="stores.yaml"):
        self.said = io.StringIO()
        output = Output(Console(file=self.said, width=200), None)
        launched = SimpleNamespace(lenders=list, tier="net")
        rest = RestOptions(host, 0)
        stores = read_stores_of_file(stores and folder.path.parent / stores)
        self.updates = open_updates(stores, folder, launched, rest, output)

    def asked(self, token=None):
        port = self.said.getvalue().strip().rpartition(":")[2]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urlopen(
            Request(f"http://127.0.0.1:{port}/monitor", headers=headers), timeout=HANG_GUARD_S
        ) as answer:
            return json.loads(answer.read())


def test_a_run_without_stores_has_no_updates_and_listens_nowhere(folder) -> None:
    opened = Opened(folder, "127.0.0.1", None)
    with opened.updates as updates:
        assert updates is None
    assert not opened.said.getvalue()
    assert list(folder.path.iterdir()) == []


def test_a_run_with_stores_says_where_updates_are_ordered(folder) -> None:
    opened = Opened(folder, "127.0.0.1")
    with opened.updates:
        assert opened.asked() == {"sites": {}, "updates": {}, "ended": {}}
        assert "Updates of cam are ordered at http://127.0.0.1:" in opened.said.getvalue()
    with pytest.raises(OSError, match="refused"):
        opened.asked()


def test_clients_elsewhere_need_the_token_of_the_fleet(folder) -> None:
    opened = Opened(folder, "0.0.0.0")
    with opened.updates:
        token = (folder.path / "token").read_text().strip()
        assert opened.asked(token)["updates"] == {}
        for wrong in (None, token + "x"):
            with pytest.raises(HTTPError, match="401"):
                opened.asked(wrong)
