"""Files that a fleet file names, and its sinks of answers."""

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from ekya.config.files import find_files
from ekya.config.fleet_reading import dump_fleet, load_fleet
from ekya.core.errors import UserError
from ekya.system.files import FolderPath


class Part(BaseModel):
    root: FolderPath
    file: Path


class Whole(BaseModel):
    part: Part


def whole(root, file="here/file"):
    return Whole(part=Part(root=root, file=file))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    return tmp_path


def test_find_files_resolves_files_and_folders(folder):
    found = find_files(whole("here"), "fleet.yaml", [folder])
    assert found.part == Part(root=folder / "here", file=folder / "here" / "file")


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (whole("here/file"), "part.root: here/file is not a folder; name the folder that it lies in"),
        (whole("there"), "part.root: there does not exist; correct the path, which begins at {folder}"),
        (whole("here", "here"), "part.file: here is a folder; name a file in it"),
    ],
)
def test_find_files_with_a_wrong_or_missing_path_is_refused(folder, made, sentence):
    with pytest.raises(UserError) as caught:
        find_files(made, "fleet.yaml", [folder])
    assert str(caught.value) == f"fleet.yaml: {sentence.format(folder=folder)}"


FLEET = {
    "classes": ["car"],
    "golden": {"model": "resnext29"},
    "streams": [{"id": "cam", "source": {"kind": "synthetic_city", "seed": 3}}],
}


def load(folder, *answers):
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({**FLEET, "answers": list(answers)}))
    return load_fleet(path)


def test_answers_are_read_and_written_back_with_names_of_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("PASS", "tops3cret")
    (tmp_path / "ca.pem").write_text("")
    (tmp_path / "out").mkdir()
    fleet = load(
        tmp_path,
        {"kind": "jsonl", "folder": "out"},
        {"kind": "webhook", "url": "https://example.org/x", "secret": "${PASS}"},
        {"kind": "webhook", "name": "other", "url": "https://u:${PASS}@example.org/x", "bearer": "${PASS}"},
        {"kind": "mqtt", "host": "h", "user": "me", "password": "${PASS}", "tls": True, "ca": "ca.pem"},
    )
    jsonl, webhook, other, mqtt = fleet.answers
    assert jsonl.folder == tmp_path / "out"
    assert [sink.name for sink in fleet.answers] == ["jsonl", "webhook", "other", "mqtt"]
    assert (mqtt.ca, mqtt.port, webhook.secret, other.bearer) == (
        tmp_path / "ca.pem",
        None,
        "${PASS}",
        "${PASS}",
    )
    written = dump_fleet(fleet)
    assert "tops3cret" not in written
    (tmp_path / "again.yaml").write_text(written)
    assert load_fleet(tmp_path / "again.yaml") == fleet


def test_fleet_without_answers_sends_none(tmp_path):
    assert load(tmp_path).answers == ()


WEB, MQTT = {"kind": "webhook", "url": "http://h"}, {"kind": "mqtt", "host": "h"}


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ({"kind": "fax"}, r"there is no kind 'fax'; use one of 'jsonl', 'webhook', 'mqtt'"),
        ({"host": "h"}, r"kind is missing"),
        (WEB | {"url": "ftp://h"}, r"answers\[0\]\.url: write an http:// or https:// URL"),
        (WEB | {"url": "http://me:tops3cret@h"}, r"url: the URL has a secret; write \$\{NAME\}"),
        (WEB | {"url": "http://h/?token=tops3cret"}, r"url: the URL has a secret"),
        (WEB | {"secret": "tops3cret"}, r"secret: a secret does not stand in the file; write \$\{NAME\}"),
        (WEB | {"bearer": "a${NAME}"}, r"bearer: a secret does not stand"),
        (MQTT | {"user": "me", "password": "tops3cret"}, r"password: a secret does not stand"),
        (MQTT | {"password": "${PASS}"}, r"a password needs a user"),
        (MQTT | {"prefix": "a/#"}, r"prefix: use words with '/' between them"),
        (MQTT | {"prefix": "/a"}, r"prefix: use words"),
        (MQTT | {"ca": "fleet.yaml"}, r"ca is for TLS"),
        (MQTT | {"tls": True, "ca": "no.pem"}, r"ca: no\.pem does not exist"),
        (MQTT | {"name": "../x"}, r"name: use letters"),
        ({"kind": "jsonl", "folder": "nowhere"}, r"folder: nowhere does not exist"),
        ({"kind": "jsonl", "files": 0}, r"files: 0 is too small"),
        ({"kind": "jsonl", "file": "x"}, r"file: there is no such key"),
    ],
)
def test_answers_that_cannot_work_are_refused_in_a_sentence(tmp_path, sink, words):
    with pytest.raises(UserError, match=words) as refused:
        load(tmp_path, sink)
    assert "tops3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_answers_of_one_name_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"answers: two sinks are called mqtt; give each its own name"):
        load(tmp_path, MQTT, {"kind": "jsonl"}, MQTT)
