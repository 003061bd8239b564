"""Tests of ``ekya simulate``: one table, one JSON document, the same bytes for the same seeds."""

import json
import signal
from dataclasses import replace

import pytest

from ekya import cli
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.simulation.trace.simulate import simulate

QUICK = GeneratorParameters(
    epochs=(2, 4), data_fractions=(0.5, 1.0), window_s=60.0, dearest_gpu_s=(20.0, 40.0)
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "profiles.parquet"
    write_trace(path, generate_trace(3, 3, 3, QUICK))
    return path


def said(capfd, *arguments):
    """Returns exit code, standard output and standard error."""
    code = cli.main(["simulate", *map(str, arguments)])
    out, err = capfd.readouterr()
    return code, out, err


def as_json(capfd, *arguments):
    code, out, err = said(capfd, *arguments, "--json", "-")
    assert code == 0, err
    return json.loads(out)


def test_simulate_plays_every_scheduler_gpu_count_and_seed(capfd, trace):
    report = as_json(
        capfd, trace, "--scheduler", "thief,no-retrain", "--gpus", "0.5,2", "--seeds", "0,1", "--error", 0.1
    )
    assert [(run["scheduler"], run["gpus"], run["seed"]) for run in report["runs"]] == [
        (name, gpus, seed) for name in ("thief", "no-retrain") for gpus in (0.5, 2.0) for seed in (0, 1)
    ]
    means = {(one["scheduler"], one["gpus"]): one["mean_accuracy"] for one in report["mean"]}
    assert means["thief", 2.0] > means["thief", 0.5]
    assert means["thief", 2.0] > means["no-retrain", 2.0]
    first = report["runs"][0]
    assert (first["world"], first["error_sd"], first["window_s"]) == ("trace", 0.1, 60.0)
    assert list(first["streams"]) == ["cam-1", "cam-2", "cam-3"]
    assert [window["index"] for window in first["streams"]["cam-1"]["windows"]] == [0, 1, 2]
    assert report["trace"]["streams"] == ["cam-1", "cam-2", "cam-3"]


def test_simulate_reuse_without_class_counts_is_refused(capfd, trace, tmp_path):
    played = as_json(capfd, trace, "--scheduler", "reuse,oracle,cloud:up=20:down=50")
    assert len(played["runs"]) == 3
    known = read_trace(trace)
    blind = tmp_path / "blind.parquet"
    streams = tuple(
        replace(stream, windows=tuple(replace(window, class_histogram=()) for window in stream.windows))
        for stream in known.streams
    )
    write_trace(blind, replace(known, streams=streams))
    code, out, err = said(capfd, blind, "--scheduler", "reuse")
    assert (code, out) == (2, "")
    assert "scheduler reuse: the trace does not say" in err


def test_simulate_with_the_same_seeds_prints_the_same_bytes(capfd, trace):
    arguments = (trace, "--scheduler", "thief,uniform", "--error", 0.2, "--seeds", "4", "--json", "-")
    first = said(capfd, *arguments)[1]
    assert json.loads(first)["runs"]
    assert said(capfd, *arguments)[1] == first


def test_simulate_prints_a_row_per_scheduler(capfd, trace):
    code, out, _ = said(capfd, trace, "--scheduler", "uniform,no-retrain", "--gpus", "1,2.5")
    assert code == 0
    for words in ("uniform", "no-retrain", "1 GPU", "2.5 GPUs", "3 streams, 3 windows", "8 retraining"):
        assert words in out


def test_simulate_with_streams_and_windows_takes_these_only(capfd, trace):
    first_two = as_json(capfd, trace, "--streams", 2, "--windows", 2, "--scheduler", "no-retrain")
    assert first_two["trace"]["streams"] == ["cam-1", "cam-2"]
    assert [window["index"] for window in first_two["runs"][0]["streams"]["cam-1"]["windows"]] == [0, 1]
    named = as_json(capfd, trace, "--streams", "cam-1,cam-3", "--scheduler", "no-retrain", "--window", 30)
    assert named["trace"]["streams"] == ["cam-1", "cam-3"]
    assert named["runs"][0]["window_s"] == 30.0


def test_simulate_with_generate_and_keep_writes_the_trace(capfd, tmp_path):
    kept = tmp_path / "kept.parquet"
    arguments = ("--generate", 5, "--streams", 2, "--windows", 2, "--speed", "measured", "--keep", kept)
    drawn = as_json(capfd, *arguments, "--scheduler", "no-retrain")
    assert read_trace(kept).training_speed.speed_at(100) == pytest.approx(0.36, abs=0.005)
    assert as_json(capfd, kept, "--scheduler", "no-retrain") == drawn


def test_simulate_of_a_folder_finds_its_trace_or_profiles(capfd, trace, tmp_path):
    assert as_json(capfd, trace.parent, "--scheduler", "no-retrain")["trace"]["windows"] == 3
    public = tmp_path / "public"
    public.mkdir()
    task = {"1": [["0_3", 0.5, 0.7, 9.0, "resnet18"]]}
    starts = {"1": {"0": [0.5, "resnet18"]}}
    content = {
        "taskwise_train_profiles": task,
        "taskwise_predicted_profiles": task,
        "taskwise_infer_profiles": starts,
    }
    (public / "jena.json").write_text(json.dumps(content))
    for path in (public, public / "jena.json"):
        assert as_json(capfd, path, "--scheduler", "thief")["trace"]["streams"] == ["jena"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--generate SEED"),
        (("TRACE", "--generate", "1"), "one of the two"),
        (("nowhere",), "nowhere: there is no such file or folder"),
        (("TRACE", "--scheduler", "guess"), "there is no 'guess'"),
        (("TRACE", "--scheduler", "thief,thief"), "stands there twice"),
        (("TRACE", "--gpus", "0"), "--gpus 0"),
        (("TRACE", "--gpus", "two"), "--gpus two"),
        (("TRACE", "--gpus", "0.1"), "at least 0.2"),
        (("TRACE", "--seeds", "x"), "--seeds x"),
        (("TRACE", "--streams", "9"), "the trace has 3"),
        (("TRACE", "--streams", "cam-9"), "no 'cam-9'; choose from cam-1, cam-2, cam-3"),
        (("TRACE", "--windows", "9"), "the trace has 3"),
        (("TRACE", "--window", "0"), "--window 0"),
        (("TRACE", "--window", "inf"), "--window inf"),
        (("TRACE", "--placement", "spread"), "'spread' is not one of 'pool', 'quantised', 'best-fit'"),
        (("TRACE", "--error", "inf"), "--error inf"),
        (("TRACE", "--speed", "linear"), "leave --speed out"),
        (("--generate", "1", "--speed", "warp"), "choose one of linear, measured"),
        (("--generate", "1", "--streams", "cam-1"), "as a number from 1"),
    ],
)
def test_simulate_with_invalid_options_prints_one_line(capfd, trace, arguments, says):
    code, out, err = said(capfd, *(str(trace) if one == "TRACE" else one for one in arguments))
    assert code == cli.USER_ERROR
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_simulate_after_ctrl_c_reports_finished_runs(capfd, trace, tmp_path, monkeypatch):
    played = []

    def interrupted(*arguments):
        if played:
            signal.raise_signal(signal.SIGINT)
        played.append(arguments)
        return simulate(*arguments)

    monkeypatch.setattr("ekya.simulation.trace.simulate.simulate", interrupted)
    result = tmp_path / "result.json"
    code, out, _ = said(capfd, trace, "--scheduler", "no-retrain,uniform", "--json", result)
    assert code == cli.STOPPED
    assert [run["scheduler"] for run in json.loads(result.read_text())["runs"]] == ["no-retrain"]
    assert "no-retrain" in out


def test_simulate_says_that_labels_come_too_late(capfd, tmp_path):
    path = tmp_path / "slow.parquet"
    write_trace(path, generate_trace(3, 3, 2, replace(QUICK, labelling_gpu_s=2.0)))
    late = "Labels of a window take up to 12 s, and its preparation ends after 9 s"
    _, out, _ = said(capfd, path, "--scheduler", "ekya", "--gpus", 1)
    assert late in out
    assert "--window 80 leaves time for them" in out
    _, out, _ = said(capfd, path, "--scheduler", "ekya", "--gpus", 1, "--window", 80)
    assert "Labels of a window" not in out


def test_simulate_says_that_the_papers_profiler_misses_trials(capfd, tmp_path, trace):
    """A recorded trial of blocks often measured only their time."""
    timed = read_trace(trace)
    streams = tuple(
        replace(one, windows=tuple(map(without_accuracies, one.windows))) for one in timed.streams
    )
    path = tmp_path / "timed.parquet"
    write_trace(path, replace(timed, streams=streams))
    missing = "paper: some trials of this trace measured no accuracy"
    assert missing in said(capfd, path, "--scheduler", "ekya,paper", "--gpus", 1)[1]
    assert missing not in said(capfd, path, "--scheduler", "ekya,uniform@paper", "--gpus", 1)[1]
    assert missing not in said(capfd, trace, "--scheduler", "paper", "--gpus", 1)[1]


def without_accuracies(window):
    trials = tuple(replace(trial, curve=replace(trial.curve, accuracies=())) for trial in window.trials)
    return replace(window, trials=trials)
