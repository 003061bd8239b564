"""Tests of ``ekya fleet profile``, and of the stores of ``ekya fleet run``, without measuring or Ray."""

import json
import os
from dataclasses import replace

import pytest
from commands import error_line

from ekya import cli
from ekya.fleet.fitting.points_file import read_points, read_tried, write_points
from ekya.fleet.papers.deep_edge.laws import NANO
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.estimates import EdgeWork, ProfileSetting
from ekya.fleet.run.deep_edge import profiler

POINTS = profile_points(NANO, 40)
WORK = EdgeWork(kind=NANO, architecture="mobilenet_v3_small", side=16, trainable_blocks=1)


def tried(work=WORK):
    return ProfileSetting(work=work, cpu=0.0, mem=0.0, batch=8, share_milli=1000)


def refused(capfd, *words):
    assert cli.main(["fleet", *map(str, words)]) == cli.USER_ERROR
    return error_line(capfd)


@pytest.fixture
def measures(monkeypatch):
    """Fake profiler that returns points of the testbed; the fixture is the list of requested points."""
    asked = []

    def profiled(run, _backend, done):
        for point in run.tried():
            if point not in done:
                asked.append((point.cpu, point.mem, point.batch, point.share_milli))
                yield point, replace(POINTS[len(asked)], kind=point.work.kind)

    monkeypatch.setattr(profiler, "profiled", profiled)
    monkeypatch.setattr(profiler, "stress_ng", lambda: "stress-ng")
    return asked


def test_fleet_profile_measures_missing_points_only(capfd, tmp_path, measures) -> None:
    words = ["fleet", "profile", "--kind", NANO, "--points", str(tmp_path / "a.parquet"), "--mem", "0"]
    assert cli.main([*words, "--batches", "8,16", "--cpu", "0,0.5", "--json", "-"]) == 0
    report = capfd.readouterr()
    assert json.loads(report.out)["measured"] == 4
    assert "Not enough yet: " in report.err
    assert "4 points of a nano are too few" in " ".join(report.err.split())
    assert cli.main([*words, "--batches", "8,16,32", "--cpu", "0,0.5", "--hold", "1,0.5", "--json", "-"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["measured"], report["in_all"]) == (8, 12)
    assert {row["function"] for row in report["errors"]} >= {"EstComputeTime", "EstExecTime"}
    assert len(set(measures)) == len(measures) == 12
    assert len(read_points(tmp_path / "a.parquet")) == 12


def test_fleet_profile_after_ctrl_c_keeps_its_points(capfd, tmp_path, monkeypatch, measures) -> None:
    whole = profiler.profiled

    def interrupted(run, backend, done):
        yield next(whole(run, backend, done))
        raise KeyboardInterrupt

    monkeypatch.setattr(profiler, "profiled", interrupted)
    words = ["fleet", "profile", "--kind", NANO, "--points", str(tmp_path / "a.parquet")]
    assert cli.main(words) == cli.STOPPED
    assert "the same command goes on" in " ".join(capfd.readouterr().out.split())
    assert len(read_points(tmp_path / "a.parquet")) == len(read_tried(tmp_path / "a.parquet")) == 1


def test_fleet_profile_with_invalid_options_is_refused(capfd, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["profile", "--kind", NANO, "--points", tmp_path / "a.parquet"]
    assert "stress-ng is not installed" in refused(capfd, *words)
    for more, sentence in (
        (["--model", "moon"], "--model moon: there is no such edge model"),
        (["--batches", "1,8"], "--batches 1: a batch has two samples"),
        (["--batches", "x"], "--batches x: these are not whole numbers"),
        (["--cpu", "0,1.5"], "--cpu 0,1.5: these are no parts of one"),
        (["--mem", "1"], "a stress of 1 on mem is none"),
        (["--hold", "0"], "--hold 0: give parts of the whole"),
    ):
        assert sentence in refused(capfd, *words, *more)
    write_points(tmp_path / "a.parquet", POINTS[:1], [tried()])
    assert "it has points of a nano with mobilenet_v3_small, 16 pixels" in refused(capfd, *words)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.fixture
def stores(tmp_path):
    for name in ("car", "bus"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
    spec = "{samples: pictures, out: a.safetensors, model: mobilenet_v3_small, side: 16}"
    (tmp_path / "stores.yaml").write_text(f"stores: {{cam: {spec}}}")
    write_points(tmp_path / "points.parquet", POINTS, [tried()])
    write_points(tmp_path / "other.parquet", POINTS, [tried(replace(WORK, trainable_blocks=2))])
    return tmp_path


def test_fleet_run_with_invalid_stores_is_refused_before_anything_starts(capfd, stores, monkeypatch) -> None:
    monkeypatch.chdir(stores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    words = ["run", "--stores", stores / "stores.yaml"]
    for more, sentence in (
        (["--clock", "virtual"], "--stores: no site is reached on virtual time"),
        (["--tier", "none"], "--stores: without a tier no update is given a server"),
        (["--points", stores / "none.parquet"], "there is no such file; measure one with ekya fleet profile"),
        (["--points", stores / "other.parquet"], "was measured with 2 of a mobilenet_v3_small on 16"),
    ):
        assert sentence in refused(capfd, *words, *more)
    assert "add --stores FILE" in refused(capfd, "run", "--points", stores / "points.parquet")
    assert "there is no such file" in refused(capfd, "run", "--stores", stores / "no.yaml")
    text = (stores / "stores.yaml").read_text()
    (stores / "stores.yaml").write_text(text.replace("side: 16", "side: 16, trigger: {new_samples: none}"))
    sentence = "stores.yaml: stores.cam.trigger.new_samples: 'none' is not possible; write a whole number; "
    assert sentence in refused(capfd, *words)
    assert not (stores / "runs").exists()
