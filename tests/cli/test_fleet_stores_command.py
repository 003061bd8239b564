"""Tests of the stores of ``ekya fleet run``, without Ray."""

import os

import pytest
from commands import error_line

from ekya import cli


def refused(capfd, *words):
    assert cli.main(["fleet", *map(str, words)]) == cli.USER_ERROR
    return error_line(capfd)


@pytest.fixture
def stores(tmp_path):
    for name in ("car", "bus"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    spec = "{samples: pictures, out: a.safetensors, model: mobilenet_v3_small, side: 16}"
    (tmp_path / "stores.yaml").write_text(f"stores: {{cam: {spec}}}")
    return tmp_path


def test_fleet_run_with_invalid_stores_is_refused_before_anything_starts(capfd, stores, monkeypatch) -> None:
    monkeypatch.chdir(stores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    words = ["run", "--stores", stores / "stores.yaml"]
    for more, sentence in (
        (["--clock", "virtual"], "--stores: they are not updated on virtual time"),
        (["--tier", "none"], "--stores: without a tier no update is given a server"),
    ):
        assert sentence in refused(capfd, *words, *more)
    assert "there is no such file" in refused(capfd, "run", "--stores", stores / "no.yaml")
    text = (stores / "stores.yaml").read_text()
    (stores / "stores.yaml").write_text(text.replace("side: 16", "side: 16, trigger: {new_samples: none}"))
    sentence = "stores.yaml: stores.cam.trigger.new_samples: 'none' is not possible; write a whole number; "
    assert sentence in refused(capfd, *words)
    assert not (stores / "runs").exists()
