"""`ekya schema`: what editors check and explain."""

import json

import jsonschema
import pytest
import yaml

from ekya.cli import main
from ekya.config.shipped import shipped_path

FLEETS = [
    path
    for path in sorted(shipped_path("datasets/synthetic_city/fleet.yaml").parent.glob("*.yaml"))
    if "streams" in yaml.safe_load(path.read_text())
]


@pytest.fixture
def schema(tmp_path):
    assert main(["schema", "--out", str(tmp_path / "schema.json")]) == 0
    return json.loads((tmp_path / "schema.json").read_text())


def test_schema_without_a_file_is_printed(schema, capfd):
    assert main(["schema"]) == 0
    assert json.loads(capfd.readouterr().out) == schema


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda path: path.stem)
def test_schema_accepts_shipped_fleets(schema, fleet):
    jsonschema.validate(yaml.safe_load(fleet.read_text()), schema)


@pytest.mark.parametrize("changes", [{"classes": "auto"}, {"zoo": False}, {"zoo": {"models": 3}}])
def test_schema_accepts_words_in_place_of_sections(schema, changes):
    jsonschema.validate({**yaml.safe_load(FLEETS[0].read_text()), **changes}, schema)


@pytest.mark.parametrize("changes", [{"classes": "all"}, {"window_s": -1}, {"labels": 3}, {"streams": []}])
def test_schema_refuses_what_a_run_refuses(schema, changes):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(FLEETS[0].read_text()), **changes}, schema)


def test_schema_explains_keys(schema):
    assert "a_MIN" in schema["properties"]["min_accuracy"]["description"]
    drift = schema["$defs"]["DriftConfig"]["properties"]
    assert "other labels of the same scene" in drift["pool"]["description"]
    assert "Attributes" not in json.dumps(schema)
