"""`ekya gc`, `status`, `backup` and `restore` of a folder, `ekya monitoring`."""

import json
import os

import pytest
import yaml
from commands import error_line
from service_folder import CAM, a_service, names, put

from ekya.cli import main
from ekya.core.units import ModelVersion, StreamId
from ekya.results.storage.run_state import ModelRow, StateStore, StreamRow
from ekya.system.files import hold_folder


@pytest.fixture
def folder(tmp_path):
    return a_service(tmp_path / "runs", retention={"models": 3})


def told(capfd):
    return json.loads(capfd.readouterr().out)


def test_gc_removes_weights_by_the_fleet_file(folder, capfd):
    assert main(["gc", str(folder.path), "--json", "-"]) == 0
    removed = told(capfd)
    assert [one["paths"] for one in removed["removed"] if one["kind"] == "weights"] == [
        [f"models/{CAM}/0.safetensors"],
        [f"models/{CAM}/1.safetensors"],
    ]
    assert removed["removed_bytes"] >= 18
    assert {path.stem for path in folder.models(CAM).iterdir()} == {"2", "3", "4"}


def test_gc_dry_run_removes_nothing(folder, capfd):
    before = names(folder.path)
    assert main(["gc", str(folder.path), "--models", "2", "--dry-run"]) == 0
    assert names(folder.path) == before
    printed = capfd.readouterr().out
    assert "Would be removed" in printed
    assert "weights" in printed


def test_gc_finds_a_run_by_its_name(folder, tmp_path, capfd):
    assert main(["gc", "yard", "--runs", str(tmp_path / "runs"), "--json", "-"]) == 0
    assert told(capfd)["dry_run"] is False


def test_gc_leaves_the_weights_of_a_running_service(folder, capfd):
    with hold_folder(folder.path):
        assert main(["gc", str(folder.path), "--models", "2"]) == 0
    assert "Weights were left alone" in capfd.readouterr().out
    assert len(list(folder.models(CAM).iterdir())) == 5


@pytest.mark.parametrize(("streams", "left"), [(["cam-1"], ["cam-1"]), (None, ["cam-1", "gone.2"])])
def test_gc_removes_old_exemplars_of_cameras_that_left(folder, streams, left):
    raw = yaml.safe_load(folder.fleet.read_text())
    folder.fleet.write_text(yaml.safe_dump({**raw, "streams": streams and [{"id": one} for one in streams]}))
    put(folder, "exemplars/gone.2.safetensors", "crops")
    for path in folder.path.glob("exemplars/*"):
        os.utime(path, (1_000_000_000,) * 2)
    assert main(["gc", str(folder.path)]) == 0
    assert sorted(path.stem for path in folder.path.glob("exemplars/*")) == left


def test_gc_of_wrong_limits_is_refused(folder, capfd):
    folder.fleet.write_text(yaml.safe_dump({"retention": {"models": 1}}))
    assert main(["gc", str(folder.path)]) == 2
    assert "retention.models: " in error_line(capfd)


def test_gc_of_another_folder_is_refused(tmp_path, capfd):
    assert main(["gc", str(tmp_path)]) == 2
    assert "this is not a run folder" in error_line(capfd)


def test_status_reports_a_folder(folder, capfd):
    assert main(["status", str(folder.path), "--json", "-"]) == 0
    said = capfd.readouterr()
    assert "TOP-SECRET" not in said.out + said.err
    now = json.loads(said.out)
    assert (now["service"], now["pid"], now["window"]) == (True, None, 2)
    assert now["cameras"][0]["version"] == 4
    assert main(["status", str(folder.path)]) == 0
    printed = capfd.readouterr().out
    assert "The service yard does not run." in printed
    assert "84.0%" in printed
    assert f"Stored pictures: {CAM} 0.0 MB." in printed


def test_backup_and_restore(folder, tmp_path, capfd):
    out = tmp_path / "yard.tar.zst"
    assert main(["backup", str(folder.path), "--out", str(out), "--json", "-"]) == 0
    assert told(capfd)["bytes"] == out.stat().st_size
    assert main(["restore", str(out), "--runs", str(tmp_path / "there"), "--json", "-"]) == 0
    assert told(capfd) == {"path": str(tmp_path / "there" / "yard"), "unset": [], "problem": None}
    assert main(["restore", str(out), "--runs", str(tmp_path / "there")]) == 2
    assert "is there already" in error_line(capfd)


def test_restore_says_what_the_fleet_file_needs_here(folder, tmp_path, capfd):
    raw = yaml.safe_load(folder.fleet.read_text())
    raw["golden"] = {"model": "onnx", "weights": "/nowhere/golden.onnx"}
    folder.fleet.write_text(yaml.safe_dump(raw))
    out = tmp_path / "yard.tar.gz"
    assert main(["backup", str(folder.path), "--out", str(out)]) == 0
    assert main(["restore", str(out), "--runs", str(tmp_path / "there")]) == 0
    assert "Before it is started: " in capfd.readouterr().out


def test_backup_without_a_folder_for_it_is_refused(folder, tmp_path, capfd):
    assert main(["backup", str(folder.path), "--out", str(tmp_path / "no" / "yard.tar.gz")]) == 2
    assert "there is no folder" in error_line(capfd)


def test_monitoring_writes_files_into_a_new_folder(tmp_path, capfd):
    folder = tmp_path / "a" / "b"
    assert main(["monitoring", "--out", str(folder), "--target", "edge-7:8470", "--token", "/run/token"]) == 0
    assert {path.name for path in folder.iterdir()} == {
        "ekya-dashboard.json",
        "ekya-rules.yml",
        "prometheus.yml",
    }
    assert json.loads((folder / "ekya-dashboard.json").read_text())["title"] == "Ekya"
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["edge-7:8470"]
    assert job["authorization"]["credentials_file"] == "/run/token"
    assert capfd.readouterr().out.count("written") == 3


def test_monitoring_into_a_file_is_an_error(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    assert main(["monitoring", "--out", str(tmp_path / "file")]) == 2
    assert "file" in error_line(capfd)


def test_status_marks_cameras_that_were_removed_in_80_columns(folder, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    gone, ill = StreamId("parking-deck-level-2-north-entrance"), StreamId("ill")
    with StateStore(folder.state) as store:
        for camera in (gone, ill):
            store.put_model(ModelRow(camera, ModelVersion(0), -1, "0.safetensors", None, None, 0))
        store.put_stream(StreamRow(ill, set_aside="its workers died 3 times " * 5))
    raw = yaml.safe_load(folder.fleet.read_text())
    cameras = [*raw["streams"], {**raw["streams"][0], "id": ill}]
    folder.fleet.write_text(yaml.safe_dump({**raw, "streams": cameras}))
    assert main(["status", str(folder.path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Cameras"))) :]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)
    assert [line.split()[0] for line in table if " removed" in line] == [gone[:29]]
    assert [line[:40] for line in lines if "was given up" in line] == [
        "ill was given up: its workers died 3 tim"
    ]
    assert main(["status", str(folder.path), "--json", "-"]) == 0
    assert {one["id"]: one["removed"] for one in told(capfd)["cameras"]} == {
        CAM: False,
        gone: True,
        ill: False,
    }
