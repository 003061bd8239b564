"""`ekya models`, and the models that a run takes by itself."""

import json

import pytest

from ekya import cli
from ekya.cli.fleet_from_options import read_fleet
from ekya.cli.run import RunConfig
from ekya.core.errors import UserError
from ekya.models.catalogue import CATALOGUE, DEFAULT_GOLDEN, GOLDEN, STUDENT, import_model
from ekya.pipeline import default_models


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def weights(data_dir):
    return data_dir / "weights"


@pytest.fixture
def video(data_dir):
    return str(data_dir / "videos" / "degirum_Traffic.mp4")


def refusal(capfd, *arguments):
    assert cli.main([str(one) for one in arguments]) == 2
    said = capfd.readouterr().err.splitlines()
    return said[-1]


def test_the_list_has_every_model_and_where_it_is(capfd, weights, monkeypatch):
    import_model(STUDENT, weights)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(default_models, "known_frame_ms", lambda model: 1234.5)
    assert cli.main(["models"]) == 0
    shown = capfd.readouterr().out
    assert all(model.name in shown for model in CATALOGUE)
    assert max(map(len, shown.partition("The cache is")[0].splitlines())) <= 80
    assert "…" not in shown
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("*")] == [STUDENT.name]
    assert cli.main(["models", "list", "--json", "-"]) == 0
    listed = {one["name"]: one for one in json.loads(capfd.readouterr().out)["models"]}
    assert listed[STUDENT.name]["path"] == str(STUDENT.cached_path)
    assert listed["deimv2-n"]["path"] is None
    assert {one["licence"] for one in listed.values()} == {"Apache-2.0", "BSD-3-Clause"}


def test_a_folder_gives_all_that_it_holds(capfd, weights):
    assert cli.main(["models", "fetch", "--from", str(weights), "--json", "-"]) == 0
    assert list(json.loads(capfd.readouterr().out)["files"]) == ["fastestdet", "deimv2-femto", "deimv2-atto"]
    assert all(model.is_cached for model in (STUDENT, DEFAULT_GOLDEN))


def test_wrong_names_and_folders_are_refused(capfd, tmp_path, weights):
    assert "no model of the catalogue" in refusal(capfd, "models", "fetch", "yolo")
    assert "there is no such folder" in refusal(capfd, "models", "fetch", "--from", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "no file there is a model" in refusal(capfd, "models", "fetch", "--from", tmp_path / "empty")
    assert "no file there is deimv2-n" in refusal(capfd, "models", "fetch", "deimv2-n", "--from", weights)


def test_without_a_model_and_a_network_the_run_is_refused_with_the_remedy(capfd, video):
    said = refusal(capfd, "run", "--video", video, "--offline")
    for needed in (STUDENT.file.url, STUDENT.file.sha256, "--from FOLDER"):
        assert needed in said


def test_a_run_takes_student_and_golden_detector_of_the_cache(weights, video):
    for model in (STUDENT, DEFAULT_GOLDEN):
        import_model(model, weights)
    fleet = read_fleet(RunConfig(video=[video], offline=True))
    assert (fleet.edge.model, fleet.edge.weights) == ("fastestdet", STUDENT.cached_path)
    assert fleet.golden.weights == DEFAULT_GOLDEN.cached_path
    assert not fleet.is_set("inference.golden_every")
    fleet = read_fleet(RunConfig(video=[video], golden="deimv2-femto", student="base"))
    assert (fleet.edge.weights, fleet.golden.weights) == (None, DEFAULT_GOLDEN.cached_path)
    with pytest.raises(UserError, match=r"deimv2-atto: is not in the cache"):
        read_fleet(RunConfig(video=[video], golden="deimv2-atto", offline=True))


@pytest.mark.parametrize(("frame_s", "chosen"), [((0.001, 0.001), 0), ((0.5, 0.001), 1), ((9.0, 9.0), 1)])
def test_the_best_golden_detector_that_is_fast_enough_is_chosen(monkeypatch, weights, video, frame_s, chosen):
    here = [model for model in GOLDEN if model.name in ("deimv2-femto", "deimv2-atto")]
    for model in (STUDENT, *here):
        import_model(model, weights)
    took = {model.name: seconds for model, seconds in zip(here, frame_s, strict=True)}
    monkeypatch.setattr("ekya.pipeline.default_models._frame_s", lambda model, _: took[model.name])
    fleet = read_fleet(RunConfig(video=[video] * 3, offline=True))
    assert fleet.golden.weights == here[chosen].cached_path


def test_the_measured_time_of_a_frame_is_kept_and_listed(capfd, weights, video):
    for model in (STUDENT, *GOLDEN[2:]):
        import_model(model, weights)
    read_fleet(RunConfig(video=[video], offline=True))
    assert cli.main(["models", "list", "--json", "-"]) == 0
    listed = {one["name"]: one["frame_ms"] for one in json.loads(capfd.readouterr().out)["models"]}
    assert listed["deimv2-femto"] > 0
    assert listed["deimv2-n"] is None
