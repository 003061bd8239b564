"""Test of labelled data sets from folder to score: prepared, labelled, run, compared and recorded."""

import json

import pytest
from draw_samples import draw_cityscapes

from ekya import cli
from ekya.results.storage.trace_file import read_trace

pytestmark = [pytest.mark.live, pytest.mark.long]


def test_prepared_city_runs_compares_and_records(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    draw_cityscapes(tmp_path / "data", {"aachen": 24, "ulm": 24}, size=(320, 160), cut_s=12)
    (tmp_path / "data/leftImg8bit/train/ulm/ulm_000005_000019_leftImg8bit.png").write_bytes(b"")

    assert cli.main(["prepare", "cityscapes", "--root", "data", "--window", "14"]) == 1
    assert cli.main(["golden", "label", "cityscapes.yaml", "--from-truth", "--out", "labels.parquet"]) == 0
    lines = (tmp_path / "cityscapes.yaml").read_text().splitlines()
    golden = "golden: {model: file, weights: labels.parquet}"
    lines = [golden if line.startswith("golden:") else line for line in lines]
    (tmp_path / "fleet.yaml").write_text("\n".join(lines))
    capfd.readouterr()

    assert cli.main(["run", "fleet.yaml", "--clock", "virtual", "--json", "-"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert {name: stream["damaged_frames"] for name, stream in told["streams"].items()} == {
        "aachen": 0,
        "ulm": 1,
    }
    assert all(stream["counted_objects"] > 0 for stream in told["streams"].values())
    assert cli.main(["compare", "fleet.yaml", "--schedulers", "ekya,no-retrain", "--windows", "2"]) == 0
    arguments = ["--families", "1", "--windows", "2", "--streams", "ulm", "--out", "ulm.parquet"]
    assert cli.main(["profile", "fleet.yaml", *arguments]) == 0
    assert [stream.stream for stream in read_trace(tmp_path / "ulm.parquet").streams] == ["ulm"]
