"""Tests of ``ekya monitoring``."""

import json

import yaml
from commands import error_line

from ekya.cli import main


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
