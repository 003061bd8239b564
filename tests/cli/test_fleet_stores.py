"""Stores of a run over REST, as ``ekya fleet run`` opens them, and again for a driver that takes it up."""

import io
import json
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from rich.console import Console
from waiting import HANG_GUARD_S

from ekya.cli.command import Output
from ekya.cli.fleet_stores import RestOptions, note_stores_file, open_updates, read_noted_stores
from ekya.core.errors import UserError
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

    def __init__(self, folder, host):
        self.said = io.StringIO()
        output = Output(Console(file=self.said, width=200), None)
        launched = SimpleNamespace(lenders=list, tier="net")
        rest = RestOptions(host, 0)
        self.updates = open_updates(read_noted_stores(folder), folder, launched, rest, output)

    def asked(self, token=None):
        port = self.said.getvalue().strip().rpartition(":")[2]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urlopen(
            Request(f"http://127.0.0.1:{port}/monitor", headers=headers), timeout=HANG_GUARD_S
        ) as answer:
            return json.loads(answer.read())


def test_a_run_without_stores_has_no_updates_and_listens_nowhere(folder) -> None:
    note_stores_file(folder, None)
    opened = Opened(folder, "127.0.0.1")
    with opened.updates as updates:
        assert updates is None
    assert not opened.said.getvalue()
    assert list(folder.path.iterdir()) == []


def test_a_run_that_is_taken_up_has_the_stores_that_it_had(folder) -> None:
    note_stores_file(folder, folder.path.parent / "stores.yaml")
    opened = Opened(folder, "127.0.0.1")
    with opened.updates:
        assert opened.asked() == {"sites": {}, "updates": {}, "ended": {}}
        assert "Updates of cam are ordered at http://127.0.0.1:" in opened.said.getvalue()
    with pytest.raises(OSError, match="refused"):
        opened.asked()


def test_clients_elsewhere_need_the_token_of_the_fleet(folder) -> None:
    note_stores_file(folder, folder.path.parent / "stores.yaml")
    opened = Opened(folder, "0.0.0.0")
    with opened.updates:
        token = (folder.path / "token").read_text().strip()
        assert opened.asked(token)["updates"] == {}
        for wrong in (None, token + "x"):
            with pytest.raises(HTTPError, match="401"):
                opened.asked(wrong)


def test_a_note_that_is_damaged_is_refused(folder) -> None:
    for words in ("[]", "{", '{"stores": 3}'):
        folder.stores.write_text(words)
        with pytest.raises(UserError, match=r"stores.json: it names no stores .*; remove it"):
            read_noted_stores(folder)
